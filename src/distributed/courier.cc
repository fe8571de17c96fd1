#include "distributed/courier.h"

#include <cstdio>
#include <system_error>

namespace tilewise::distributed {

Courier::Courier(const tilewise_communicator& communicator, bool overlaps, const Worker& worker)
    : communicator_(communicator), worker_(worker) {
  if (!overlaps || worker.on_device()) return;
  try {
    thread_ = std::thread([this] { work(); });
  } catch (const std::system_error&) {  // the caller's thread does it all
  }
}

Courier::~Courier() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    state_ = State::kEnd;
  }
  changed_.notify_all();
  thread_.join();
}

Status Courier::start(const tilewise_exchange& request, const char* activity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  request_ = &request;
  activity_ = activity;
  if (worker_.on_device())
    return start_exchange(communicator_, request, worker_.stream(), activity);
  state_ = State::kStarted;
  changed_.notify_all();
  return TILEWISE_OK;
}

Status Courier::finish() {
  if (worker_.on_device())
    return finish_exchange(communicator_, *request_, worker_.stream(), activity_);
  if (!thread_.joinable()) return exchange(communicator_, *request_, activity_);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return state_ == State::kFinished; });
  state_ = State::kIdle;
  return status_ == TILEWISE_OK ? status_ : problem::fail(status_, "%s", message_);
}

void Courier::work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return state_ == State::kStarted || state_ == State::kEnd; });
    if (state_ == State::kEnd) return;
    lock.unlock();
    const Status status = exchange(communicator_, *request_, activity_);
    lock.lock();
    status_ = status;
    std::snprintf(message_, sizeof(message_), "%s", problem::message());
    state_ = State::kFinished;
    changed_.notify_all();
  }
}

}  // namespace tilewise::distributed
