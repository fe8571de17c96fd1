#include "distributed/nccl/communicator.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "cuda/host/runtime.h"
#include "distributed/communicator.h"
#include "problem/tensor_checks.h"

namespace tilewise::distributed::nccl {
namespace {

using problem::fail;

// Exchanges under way. One more waits for the oldest: a rank is rarely that far ahead of its
// device.
constexpr std::size_t kSlots = 256;
constexpr auto kLook = std::chrono::milliseconds(10);
constexpr auto kSoon = std::chrono::microseconds(50);
constexpr double kJoinLimit = 600;  // seconds

}  // namespace

Communicator::Communicator(const Library& library, Comm comm, bool owns, std::int32_t size,
                           std::int32_t rank, std::int32_t device)
    : library_(library), size_(size), rank_(rank), device_(device), owns_(owns), comm_(comm) {}

Status Communicator::make_slots() {
  pending_.resize(kSlots);
  slots_.push_back(std::make_unique<cuda::Exchange>(device_));
  TILEWISE_RETURN_IF_ERROR(slots_.back()->status());
  while (slots_.size() < kSlots) {
    slots_.push_back(std::make_unique<cuda::Exchange>(slots_.front().get()));
    TILEWISE_RETURN_IF_ERROR(slots_.back()->status());
  }
  try {
    watchdog_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    return fail(TILEWISE_NO_MEMORY, "nccl: no thread for the time limits of exchanges");
  }
  return TILEWISE_OK;
}

Status Communicator::create(const UniqueId& id, std::int32_t size, std::int32_t rank,
                            std::int32_t device, std::unique_ptr<Communicator>* made) {
  const Library* library = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_library(&library));
  Comm comm = nullptr;
  Config config;
  TILEWISE_RETURN_IF_ERROR(cuda::on_device(device, [&] {
    return check(*library, library->comm_init_rank(&comm, size, id, rank, &config),
                 "ncclCommInitRankConfig");
  }));
  made->reset(new Communicator(*library, comm, true, size, rank, device));
  TILEWISE_RETURN_IF_ERROR((*made)->settle(comm, kJoinLimit));
  return (*made)->make_slots();
}

Status Communicator::wrap(Comm comm, std::unique_ptr<Communicator>* made) {
  const Library* library = nullptr;
  TILEWISE_RETURN_IF_ERROR(find_library(&library));
  int size = 0;
  int rank = 0;
  int device = 0;
  TILEWISE_RETURN_IF_ERROR(check(*library, library->comm_count(comm, &size), "ncclCommCount"));
  TILEWISE_RETURN_IF_ERROR(
      check(*library, library->comm_user_rank(comm, &rank), "ncclCommUserRank"));
  TILEWISE_RETURN_IF_ERROR(
      check(*library, library->comm_cu_device(comm, &device), "ncclCommCuDevice"));
  made->reset(new Communicator(*library, comm, false, size, rank, device));
  return (*made)->make_slots();
}

Communicator::~Communicator() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
  if (comm_ != nullptr && owns_) {
    static_cast<void>(cuda::on_device(
        device_, [&] { return check(library_, library_.comm_destroy(comm_), "ncclCommDestroy"); }));
  }
}

tilewise_communicator Communicator::interface() {
  tilewise_communicator result = {};
  result.struct_size = sizeof(result);
  result.rank = rank_;
  result.size = size_;
  result.calls_from_any_thread = 1;
  result.device_index = device_;
  result.self = this;
  result.exchange = [](void* self, const tilewise_exchange* request, std::int32_t* failed_rank) {
    return static_cast<Communicator*>(self)->exchange(*request, failed_rank);
  };
  result.abort = [](void* self) { static_cast<Communicator*>(self)->abort(); };
  result.start = [](void* self, const tilewise_exchange* request, void* stream,
                    std::int32_t* failed_rank) {
    return static_cast<Communicator*>(self)->start(*request, stream, failed_rank);
  };
  result.finish = [](void* self, void* stream, std::int32_t* failed_rank) {
    return static_cast<Communicator*>(self)->finish(stream, failed_rank);
  };
  return result;
}

Status Communicator::failure(std::int32_t* failed_rank) const {
  *failed_rank = failed_rank_;
  switch (failure_) {
    case TILEWISE_TIMEOUT:
      return fail(TILEWISE_TIMEOUT, "rank %d did not answer in time", failed_rank_);
    case TILEWISE_REMOTE_ERROR:
      return fail(TILEWISE_REMOTE_ERROR, "rank %d has failed%s", failed_rank_,
                  failed_rank_ == rank_ ? " (this one)" : "");
    default:
      return fail(failure_, "nccl reports an error in an exchange with rank %d", failed_rank_);
  }
}

Status Communicator::status() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::int32_t failed_rank = -1;
  return failure_ == TILEWISE_OK ? failure_ : failure(&failed_rank);
}

// Ends the library's communicator, so that no stream waits for ever. That of a caller may be in a
// call that hangs, which the abort ends.
void Communicator::fail_all(Status reason, std::int32_t failed_rank,
                            std::unique_lock<std::mutex>& lock) {
  if (failure_ != TILEWISE_OK) return;
  failure_ = reason;
  failed_rank_ = failed_rank;
  failed_ = true;
  count_ = 0;
  Comm const comm = std::exchange(comm_, nullptr);
  lock.unlock();
  if (comm != nullptr) {
    std::unique_lock<std::mutex> calls(calls_, std::defer_lock);
    if (owns_) calls.lock();
    static_cast<void>(library_.comm_abort(comm));
  }
  lock.lock();
  changed_.notify_all();
}

void Communicator::abort() {
  std::unique_lock<std::mutex> lock(mutex_);
  fail_all(TILEWISE_REMOTE_ERROR, rank_, lock);
}

// Looks at the exchanges that are under way, with the lock. Returns whether there are any.
bool Communicator::look(std::unique_lock<std::mutex>& lock) {
  const Time now = std::chrono::steady_clock::now();
  while (count_ > 0) {
    Pending& oldest = pending_[oldest_];
    // The caller watches its own call. That of a communicator of the caller's may hang, however.
    if (oldest.calling && owns_) return true;
    if (!oldest.calling && slots_[oldest_]->has_ended()) {
      oldest_ = (oldest_ + 1) % kSlots;
      --count_;
      changed_.notify_all();
      continue;
    }
    Result error = kSuccess;
    if (library_.comm_get_async_error(comm_, &error) != kSuccess ||
        (error != kSuccess && error != kInProgress)) {
      fail_all(TILEWISE_REMOTE_ERROR, oldest.peer, lock);
      return false;
    }
    if (!oldest.timed && slots_[oldest_]->has_begun()) {
      oldest.timed = true;
      oldest.since = now;
    }
    const std::chrono::duration<double> spent = now - oldest.since;
    if (!oldest.timed || !(spent.count() > oldest.limit)) return true;
    fail_all(TILEWISE_TIMEOUT, oldest.peer, lock);
  }
  return false;
}

void Communicator::watch() {
  static_cast<void>(cuda::use_device(device_));
  std::unique_lock<std::mutex> lock(mutex_);
  while (!ends_ || look(lock)) {
    if (look(lock)) {
      changed_.wait_for(lock, kLook);
    } else {
      changed_.wait(lock, [this] { return ends_ || count_ > 0; });
    }
  }
}

// Begins an exchange: takes its slot, and waits until it is free.
Status Communicator::open(const tilewise_exchange& request, std::int32_t* failed_rank) {
  *failed_rank = rank_;
  TILEWISE_RETURN_IF_ERROR(check_messages(request, size_));
  std::int32_t peer = rank_;
  if (request.receive_count > 0) peer = request.receives[0].peer;
  if (request.receive_count == 0 && request.send_count > 0) peer = request.sends[0].peer;
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return failure_ != TILEWISE_OK || count_ < kSlots; });
  if (failure_ != TILEWISE_OK) return failure(failed_rank);
  try {
    order_.reserve(static_cast<std::size_t>(request.send_count) +
                   static_cast<std::size_t>(request.receive_count));
  } catch (const std::bad_alloc&) {
    return fail(TILEWISE_NO_MEMORY, "no memory for %d messages",
                request.send_count + request.receive_count);
  }
  if (count_ == 0) oldest_ = next_;
  ++count_;
  pending_[next_] = {request.timeout_seconds, peer, true, false, {}};
  changed_.notify_all();
  return TILEWISE_OK;
}

// Waits until a call of the library, which connects ranks when they first exchange messages, has
// started everything.
Status Communicator::settle(Comm comm, double seconds) const {
  const Time start = std::chrono::steady_clock::now();
  while (true) {
    Result state = kSuccess;
    TILEWISE_RETURN_IF_ERROR(
        check(library_, library_.comm_get_async_error(comm, &state), "ncclCommGetAsyncError"));
    if (state != kInProgress) return check(library_, state, "starting");
    if (failed_) return TILEWISE_REMOTE_ERROR;  // why, is known
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    if (spent.count() > seconds)
      return fail(TILEWISE_TIMEOUT, "nccl: a rank has not begun its exchange in time");
    std::this_thread::sleep_for(kSoon / 5);
  }
}

// Messages of two ranks are matched in their order: both sides sort them by their tags.
Status Communicator::issue(const tilewise_exchange& request) {
  const std::lock_guard<std::mutex> calls(calls_);
  Comm comm = nullptr;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    comm = comm_;
  }
  if (comm == nullptr) return TILEWISE_REMOTE_ERROR;
  void* const stream = slots_[next_]->stream();
  const auto for_each = [&](const tilewise_message* messages, std::int32_t count, auto function) {
    order_.clear();
    for (std::int32_t m = 0; m < count; ++m) order_.push_back(messages + m);
    std::stable_sort(order_.begin(), order_.end(),
                     [](const auto* a, const auto* b) { return a->tag < b->tag; });
    Result result = kSuccess;
    for (const tilewise_message* message : order_)
      if (result == kSuccess) result = function(*message);
    return result;
  };
  TILEWISE_RETURN_IF_ERROR(check(library_, library_.group_start(), "ncclGroupStart"));
  Result result = for_each(request.sends, request.send_count, [&](const tilewise_message& message) {
    return library_.send(message.data, static_cast<std::size_t>(message.bytes), kInt8, message.peer,
                         comm, stream);
  });
  if (result == kSuccess) {
    result =
        for_each(request.receives, request.receive_count, [&](const tilewise_message& message) {
          return library_.receive(message.data, static_cast<std::size_t>(message.bytes), kInt8,
                                  message.peer, comm, stream);
        });
  }
  const Result ended = library_.group_end();
  TILEWISE_RETURN_IF_ERROR(
      check(library_, result == kSuccess ? ended : result, "sending and receiving"));
  return ended == kInProgress ? settle(comm, request.timeout_seconds) : Status{TILEWISE_OK};
}

// Gives the messages of an open exchange to the library. After a failure of ours its result says
// why there was one.
Status Communicator::call(const tilewise_exchange& request, std::int32_t* failed_rank) {
  const Status issued = cuda::on_device(device_, [&] { return issue(request); });
  const Status ended = slots_[next_]->end();
  std::unique_lock<std::mutex> lock(mutex_);
  if (failure_ != TILEWISE_OK) return failure(failed_rank);
  if (issued != TILEWISE_OK || ended != TILEWISE_OK) {
    const Status status = issued != TILEWISE_OK ? issued : ended;
    const bool remote = status == TILEWISE_REMOTE_ERROR || status == TILEWISE_TIMEOUT;
    *failed_rank = remote ? pending_[next_].peer : rank_;
    fail_all(status, *failed_rank, lock);
    return status;
  }
  pending_[next_].calling = false;
  return TILEWISE_OK;
}

Status Communicator::start(const tilewise_exchange& request, void* stream,
                           std::int32_t* failed_rank) {
  TILEWISE_RETURN_IF_ERROR(open(request, failed_rank));
  Status begun = slots_[next_]->begin(stream);
  if (begun == TILEWISE_OK) begun = slots_[next_]->lead(stream);
  if (begun == TILEWISE_OK) return call(request, failed_rank);
  std::unique_lock<std::mutex> lock(mutex_);
  fail_all(TILEWISE_DEVICE_ERROR, rank_, lock);
  return begun;
}

Status Communicator::finish(void* stream, std::int32_t* failed_rank) {
  *failed_rank = rank_;
  const Status waits = slots_[next_]->wait(device_, stream);
  next_ = (next_ + 1) % kSlots;
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ == TILEWISE_OK ? waits : failure(failed_rank);
}

// Waits until the exchange that has been called is complete, or has failed.
Status Communicator::wait_for_end(std::int32_t* failed_rank) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (look(lock)) changed_.wait_for(lock, kSoon);
  return failure_ == TILEWISE_OK ? failure_ : failure(failed_rank);
}

// Exchanges messages in host memory through `memory` of the device.
Status Communicator::stage(const tilewise_exchange& request, char* memory,
                           std::int32_t* failed_rank) {
  void* const stream = slots_[next_]->stream();
  std::vector<tilewise_message> sends(request.sends, request.sends + request.send_count);
  std::vector<tilewise_message> receives(request.receives,
                                         request.receives + request.receive_count);
  for (tilewise_message& message : sends) {
    TILEWISE_RETURN_IF_ERROR(cuda::send(device_, memory, message.data, message.bytes, stream));
    message.data = memory;
    memory += message.bytes;
  }
  for (tilewise_message& message : receives) {
    message.data = memory;
    memory += message.bytes;
  }
  const tilewise_exchange on_device = {sends.data(), receives.data(), request.send_count,
                                       request.receive_count, request.timeout_seconds};
  TILEWISE_RETURN_IF_ERROR(start(on_device, stream, failed_rank));
  TILEWISE_RETURN_IF_ERROR(finish(stream, failed_rank));
  TILEWISE_RETURN_IF_ERROR(wait_for_end(failed_rank));
  for (std::size_t m = 0; m < receives.size(); ++m) {
    TILEWISE_RETURN_IF_ERROR(
        cuda::copy(device_, request.receives[m].data, receives[m].data, receives[m].bytes, stream));
  }
  return TILEWISE_OK;
}

Status Communicator::exchange(const tilewise_exchange& request, std::int32_t* failed_rank) {
  *failed_rank = rank_;
  TILEWISE_RETURN_IF_ERROR(check_messages(request, size_));
  std::int64_t bytes = 0;
  for (std::int32_t m = 0; m < request.send_count; ++m) bytes += request.sends[m].bytes;
  for (std::int32_t m = 0; m < request.receive_count; ++m) bytes += request.receives[m].bytes;
  void* memory = nullptr;
  void* const stream = slots_.front()->stream();
  TILEWISE_RETURN_IF_ERROR(cuda::allocate(device_, bytes, stream, &memory));
  Status status = TILEWISE_OK;
  try {
    status = stage(request, static_cast<char*>(memory), failed_rank);
  } catch (const std::bad_alloc&) {
    status = fail(TILEWISE_NO_MEMORY, "no memory for %d messages",
                  request.send_count + request.receive_count);
  }
  cuda::release(device_, memory, stream);
  return status;
}

}  // namespace tilewise::distributed::nccl
