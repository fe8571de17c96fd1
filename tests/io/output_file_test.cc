#include "io/output_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <vector>

#include "io/npy.h"
#include "io/temporaries.h"
#include "support.h"

namespace tilewise::io {
namespace {

using Names = std::vector<std::string>;

TEST(OutputFile, AppearsWholeAtCommit) {
  const TemporaryFolder folder;
  OutputFile file(folder / "out");
  file.write("one ");
  file.write("two");
  ASSERT_EQ(folder.names().size(), 1u);
  EXPECT_NE(folder.names()[0], "out");
  file.commit();
  EXPECT_EQ(folder.names(), Names{"out"});
  EXPECT_EQ(read_bytes(folder / "out"), "one two");
}

TEST(OutputFile, WithoutCommitNothingHasChanged) {
  const TemporaryFolder folder;
  write_bytes(folder / "out", "before");
  {
    OutputFile file(folder / "out");
    file.write("after");
    const OutputFile moved = std::move(file);
    EXPECT_EQ(folder.names().size(), 2u);
  }
  EXPECT_EQ(folder.names(), Names{"out"});
  EXPECT_EQ(read_bytes(folder / "out"), "before");
}

TEST(OutputFile, SeveralFilesAppearOnlyAtTheirCommits) {
  const TemporaryFolder folder;
  const Array array = pattern_array(ElementType::f32, {3});
  std::vector<OutputFile> files;
  files.push_back(stage_npy(folder / "a.npy", array));
  files.push_back(stage_npy(folder / "b.npy", array));
  for (const std::string& name : folder.names()) EXPECT_TRUE(name.ends_with(".tmp")) << name;
  for (OutputFile& file : files) file.commit();
  EXPECT_EQ(folder.names(), (Names{"a.npy", "b.npy"}));
}

TEST(OutputFile, FollowsTheUmask) {
  const TemporaryFolder folder;
  const mode_t before = ::umask(027);
  OutputFile file(folder / "out");
  file.commit();
  ::umask(before);
  struct stat status = {};
  ASSERT_EQ(::stat((folder / "out").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u);
}

TEST(OutputFile, OnlyRegularFilesAreReplaced) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder / "pipe", folder / ".", std::string("/dev/null")}) {
    const std::string error = file_error([&] { OutputFile file(path); });
    EXPECT_NE(error.find("not a regular file"), std::string::npos) << path << ": " << error;
  }
  EXPECT_NE(file_error([] { OutputFile file(""); }).find("empty"), std::string::npos);
  EXPECT_EQ(folder.names(), Names{"pipe"});
}

TEST(OutputFile, AMissingFolderIsNamed) {
  const TemporaryFolder folder;
  const std::string path = folder / "absent/out";
  const std::string error = file_error([&] { OutputFile file(path); });
  EXPECT_TRUE(error.starts_with(path + ": ")) << error;
  EXPECT_NE(error.find("No such file"), std::string::npos) << error;
}

TEST(OutputFile, ANameOf255BytesHasRoomForItsTemporary) {
  const TemporaryFolder folder;
  const std::string name(255, 'n');
  OutputFile file(folder / name);
  file.commit();
  EXPECT_EQ(folder.names(), Names{name});
}

TEST(OutputFile, AFailedWriteLeavesNothing) {
  const TemporaryFolder folder;
  write_bytes(folder / "out.npy", "before");
  const int status = run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limits = {1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limits);
    const std::string error =
        file_error([&] { write_npy(folder / "out.npy", pattern_array(ElementType::f32, {1000})); });
    if (error.find("File too large") == std::string::npos) throw std::runtime_error(error);
  });
  EXPECT_EQ(status, 0);
  EXPECT_EQ(folder.names(), Names{"out.npy"});
  EXPECT_EQ(read_bytes(folder / "out.npy"), "before");
}

TEST(OutputFile, AFailedCommitLeavesNothing) {
  const TemporaryFolder folder;
  OutputFile* file = new OutputFile(folder / "out");
  ASSERT_EQ(::mkdir((folder / "out").c_str(), 0700), 0);
  EXPECT_NE(file_error([&] { file->commit(); }).find("cannot rename"), std::string::npos);
  delete file;
  EXPECT_EQ(folder.names(), Names{"out"});
}

TEST(OutputFile, TooManyAtOnceIsAnError) {
  const TemporaryFolder folder;
  std::vector<OutputFile> files;
  for (int i = 0; i < kMaxTemporaries; ++i) files.emplace_back(folder / std::to_string(i));
  EXPECT_NE(file_error([&] { OutputFile file(folder / "more"); }).find("Too many open files"),
            std::string::npos);
  files.pop_back();
  EXPECT_EQ(file_error([&] { OutputFile file(folder / "more"); }), "");
  files.clear();
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace tilewise::io
