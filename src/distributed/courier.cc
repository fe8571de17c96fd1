#include "distributed/courier.h"

#include <cstdio>
#include <system_error>

namespace tilewise::distributed {

Courier::Courier(const tilewise_communicator& communicator, bool overlaps)
    : communicator_(communicator) {
  if (!overlaps) return;
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

void Courier::start(const tilewise_exchange& request, const char* activity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  request_ = &request;
  activity_ = activity;
  state_ = State::kStarted;
  changed_.notify_all();
}

Status Courier::finish() {
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
