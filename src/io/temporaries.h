// The temporary files that live right now, in a form that a signal handler may read.
#pragma once

#include <functional>
#include <string>

namespace tilewise::io {

// How many output files may be open at once, and how long a temporary's path may be.
inline constexpr int kMaxTemporaries = 64;
inline constexpr int kMaxTemporaryPath = 4096;

// After this call SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE and SIGXFSZ first remove every
// temporary file of this process, then do what they do by default (end the process). A signal that
// is ignored at the call stays ignored. For programs, at the start of main; a library has no say
// over signals.
void remove_temporaries_on_signal();

// Calls `create` (which creates the file at `path`, returns a descriptor, or -1 with errno set)
// such that a signal finds the file either not yet there or listed. Returns what create returned;
// on -1 nothing stays listed and errno is kept. `slot` names the entry for forget_temporary. -1
// with ENAMETOOLONG or EMFILE if the list has no room.
int create_temporary(const std::string& path, const std::function<int()>& create, int& slot);

// Does not return if a signal is ending the process: another thread's handler has removed the
// temporaries, and what fails for that reason is no error to report.
void wait_if_ending();

// The file was renamed or removed.
void forget_temporary(int slot);

}  // namespace tilewise::io
