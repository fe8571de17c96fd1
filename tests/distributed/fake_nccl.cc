// A library with NCCL's names whose ranks are threads of one process, for devices on which work is
// done when it is started: the emulated one. A group is done when all its messages have arrived,
// for which ncclGroupEnd() waits, or a thread if the communicator does not block. Tests load it by
// $TILEWISE_NCCL_LIBRARY.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// NOLINTBEGIN(readability-identifier-naming): the names are NCCL's
namespace {

constexpr int kSuccess = 0;
constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;
constexpr auto kJoinLimit = std::chrono::seconds(20);

// The ranks of one id.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  int joined = 0;
  bool aborted = false;
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent;  // by sender and receiver
};

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int size = 0;
  int rank = 0;
  bool blocking = true;
  std::atomic<int> state{0};  // of a communicator that does not block
};

struct ncclConfig {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

struct ncclUniqueId {
  char bytes[128];
};

namespace {

struct Operation {
  ncclComm* comm;
  const void* source;
  void* target;
  std::size_t bytes;
  int peer;
};

struct Worlds {
  std::mutex mutex;
  int last_id = 0;
  std::map<std::string, std::shared_ptr<World>> by_id;
  std::vector<std::unique_ptr<ncclComm>> comms;  // to the end: a thread may be in an aborted one
};

Worlds& worlds() {
  static Worlds all;
  return all;
}

thread_local int group_depth = 0;
thread_local std::vector<Operation> group;

int receive(const Operation& operation) {
  World& world = *operation.comm->world;
  auto& queue = world.sent[{operation.peer, operation.comm->rank}];
  std::unique_lock<std::mutex> lock(world.mutex);
  world.changed.wait(lock, [&] { return world.aborted || !queue.empty(); });
  if (world.aborted) return kRemoteError;
  const std::vector<char> message = std::move(queue.front());
  queue.pop_front();
  if (message.size() != operation.bytes) return kInvalidArgument;
  if (operation.bytes > 0) std::memcpy(operation.target, message.data(), operation.bytes);
  return kSuccess;
}

int run(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    World& world = *operation.comm->world;
    const std::lock_guard<std::mutex> lock(world.mutex);
    if (world.aborted) return kRemoteError;
    for (const int from : {operation.comm->rank, operation.peer}) {
      const int to = from == operation.peer ? operation.comm->rank : operation.peer;
      world.sent[{from, to}];  // references to it stay valid
    }
    if (operation.source == nullptr) continue;
    const char* const source = static_cast<const char*>(operation.source);
    world.sent[{operation.comm->rank, operation.peer}].emplace_back(source,
                                                                    source + operation.bytes);
    world.changed.notify_all();
  }
  for (const Operation& operation : operations) {
    const int result = operation.source == nullptr ? receive(operation) : kSuccess;
    if (result != kSuccess) return result;
  }
  return kSuccess;
}

int start(std::vector<Operation> operations) {
  if (operations.empty()) return kSuccess;
  ncclComm* const comm = operations.front().comm;
  if (comm->blocking) return run(operations);
  comm->state = kInProgress;
  std::thread([comm, operations = std::move(operations)] {
    comm->state = run(operations);
  }).detach();
  return kInProgress;
}

}  // namespace

extern "C" {

int ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard<std::mutex> lock(worlds().mutex);
  std::memset(id, 0, sizeof(*id));
  const std::string text = "fake " + std::to_string(++worlds().last_id);
  std::memcpy(id->bytes, text.data(), text.size());
  return kSuccess;
}

int ncclCommInitRankConfig(ncclComm** comm, int size, ncclUniqueId id, int rank,
                           const ncclConfig* config) {
  std::shared_ptr<World> world;
  {
    const std::lock_guard<std::mutex> lock(worlds().mutex);
    std::shared_ptr<World>& own = worlds().by_id[id.bytes];
    if (own == nullptr) own = std::make_shared<World>();
    world = own;
    worlds().comms.push_back(std::make_unique<ncclComm>());
    *comm = worlds().comms.back().get();
  }
  (*comm)->world = world;
  (*comm)->size = size;
  (*comm)->rank = rank;
  (*comm)->blocking = config == nullptr || config->blocking != 0;
  std::unique_lock<std::mutex> lock(world->mutex);
  ++world->joined;
  world->changed.notify_all();
  const bool all = world->changed.wait_for(lock, kJoinLimit, [&] { return world->joined == size; });
  return all ? kSuccess : kRemoteError;
}

int ncclCommInitRank(ncclComm** comm, int size, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, size, id, rank, nullptr);
}

int ncclCommDestroy(ncclComm*) { return kSuccess; }

int ncclCommAbort(ncclComm* comm) {
  const std::lock_guard<std::mutex> lock(comm->world->mutex);
  comm->world->aborted = true;
  comm->world->changed.notify_all();
  return kSuccess;
}

int ncclCommCount(ncclComm* comm, int* count) {
  *count = comm->size;
  return kSuccess;
}

int ncclCommUserRank(ncclComm* comm, int* rank) {
  *rank = comm->rank;
  return kSuccess;
}

int ncclCommCuDevice(ncclComm*, int* device) {
  *device = 0;
  return kSuccess;
}

int ncclCommGetAsyncError(ncclComm* comm, int* error) {
  const std::lock_guard<std::mutex> lock(comm->world->mutex);
  *error = comm->world->aborted ? kRemoteError : comm->state.load();
  return kSuccess;
}

const char* ncclGetErrorString(int result) {
  return result == kRemoteError ? "remote process exited" : "invalid argument";
}

int ncclGroupStart() {
  ++group_depth;
  return kSuccess;
}

int ncclGroupEnd() {
  if (--group_depth > 0) return kSuccess;
  return start(std::exchange(group, {}));
}

int ncclSend(const void* data, std::size_t count, int, int peer, ncclComm* comm, void*) {
  static const char nothing = 0;
  group.push_back({comm, data != nullptr ? data : &nothing, nullptr, count, peer});
  return group_depth > 0 ? kSuccess : start(std::exchange(group, {}));
}

int ncclRecv(void* data, std::size_t count, int, int peer, ncclComm* comm, void*) {
  group.push_back({comm, nullptr, data, count, peer});
  return group_depth > 0 ? kSuccess : start(std::exchange(group, {}));
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
