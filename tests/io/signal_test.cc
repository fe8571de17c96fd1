// Ctrl-C leaves neither a partial nor a temporary file.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>
#include <thread>

#include "io/output_file.h"
#include "io/temporaries.h"
#include "support.h"

namespace tilewise::io {
namespace {

using Names = std::vector<std::string>;

// The child's signal must not depend on the signal actions that this program inherited.
void default_signals() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) ::signal(number, SIG_DFL);
}

TEST(Signals, EachRemovesTheTemporaryAndEndsTheProcess) {
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) {
    SCOPED_TRACE(number);
    const TemporaryFolder folder;
    write_bytes(folder / "out", "before");
    const int status = run_in_child([&] {
      default_signals();
      remove_temporaries_on_signal();
      OutputFile first(folder / "out");
      OutputFile second(folder / "other");
      first.write("partial");
      ::raise(number);
    });
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_EQ(WTERMSIG(status), number);
    EXPECT_EQ(folder.names(), Names{"out"});
    EXPECT_EQ(read_bytes(folder / "out"), "before");
  }
}

TEST(Signals, WithoutTheHandlerATemporaryStays) {
  const TemporaryFolder folder;
  const int status = run_in_child([&] {
    default_signals();
    OutputFile file(folder / "out");
    ::raise(SIGTERM);
  });
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(folder.names().size(), 1u) << "the other tests here would prove nothing";
}

TEST(Signals, CommittedFilesStay) {
  const TemporaryFolder folder;
  run_in_child([&] {
    default_signals();
    remove_temporaries_on_signal();
    OutputFile file(folder / "out");
    file.commit();
    ::raise(SIGINT);
  });
  EXPECT_EQ(folder.names(), Names{"out"});
}

TEST(Signals, IgnoredSignalsStayIgnored) {
  const TemporaryFolder folder;
  const int status = run_in_child([&] {
    ::signal(SIGHUP, SIG_IGN);
    remove_temporaries_on_signal();
    OutputFile file(folder / "out");
    ::raise(SIGHUP);
    file.commit();
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.names(), Names{"out"});
}

TEST(Signals, AForkedChildLeavesItsParentsFiles) {
  const TemporaryFolder folder;
  const int status = run_in_child([&] {
    default_signals();
    remove_temporaries_on_signal();
    OutputFile file(folder / "out");
    const int inner = run_in_child([] { ::raise(SIGTERM); });
    if (!WIFSIGNALED(inner)) throw std::runtime_error("the grandchild lived");
    file.commit();
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.names(), Names{"out"});
}

// Signals arrive at random moments, while two threads create, write, commit and drop files as fast
// as they can.
TEST(Signals, AtAnyMomentNothingIsLeft) {
  for (int round = 0; round < 30; ++round) {
    const TemporaryFolder folder;
    int ready[2];
    ASSERT_EQ(::pipe(ready), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      default_signals();
      remove_temporaries_on_signal();
      const auto work = [&](const std::string& name) {
        for (;;) {
          OutputFile file(folder / name);
          file.write("whole");
          file.commit();
          OutputFile dropped(folder / name);
        }
      };
      std::thread other(work, "a");
      if (::write(ready[1], "", 1) != 1) ::_exit(1);
      work("b");
    }
    char byte = 0;
    ASSERT_EQ(::read(ready[0], &byte, 1), 1);
    ::usleep(static_cast<useconds_t>(500 + 137 * round));
    ::kill(child, SIGINT);
    int status = 0;
    ::waitpid(child, &status, 0);
    ::close(ready[0]);
    ::close(ready[1]);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
    for (const std::string& name : folder.names()) {
      EXPECT_TRUE(name == "a" || name == "b") << name << " was left in round " << round;
      EXPECT_EQ(read_bytes(folder / name), "whole");
    }
  }
}

}  // namespace
}  // namespace tilewise::io
