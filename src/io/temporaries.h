// The list of the temporary files that exist now, in a form that a signal handler may read.
#pragma once

#include <functional>
#include <string>

namespace tilewise::io {

// The most output files that may be open at once, and the longest path of a temporary.
inline constexpr int kMaxTemporaries = 64;
inline constexpr int kMaxTemporaryPath = 4096;

// After this call SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE and SIGXFSZ first remove every
// temporary file of this process, then take their default action (which ends the process). A signal
// that is ignored at the time of the call stays ignored. Programs call this at the start of main; a
// library must not install signal handlers.
void remove_temporaries_on_signal();

// Calls `create` (which creates the file at `path` and returns a descriptor, or -1 with errno set)
// such that a signal finds the file either not yet created or listed. Returns the result of
// `create`; on -1 nothing stays listed and errno is preserved. `slot` identifies the entry for
// forget_temporary. Returns -1 with ENAMETOOLONG or EMFILE if the list has no room.
int create_temporary(const std::string& path, const std::function<int()>& create, int& slot);

// Does not return if a signal is ending the process: another thread's handler has removed the
// temporaries, and a failure with that cause must not be reported as an error.
void wait_if_ending();

// Removes the entry after the file was renamed or removed.
void forget_temporary(int slot);

}  // namespace tilewise::io
