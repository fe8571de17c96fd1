#include "cuda/emulation/streams.h"

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace {

// What an event has recorded. It lives as long as work that refers to it.
struct Recording {
  std::int64_t last = 0;          // the number of the last record,
  std::int64_t done = 0;          // and of the last one that was reached
  CUstream_st* stream = nullptr;  // of the last record
  std::chrono::steady_clock::time_point time;
};

std::recursive_mutex& streams_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

}  // namespace

struct CUstream_st {
  std::deque<std::function<cudaError_t()>> works;
  cudaError_t error = cudaSuccess;
};
struct CUevent_st {
  std::shared_ptr<Recording> recording = std::make_shared<Recording>();
};

namespace tilewise::emulation {
namespace {

CUstream_st* stream_of(cudaStream_t stream) {
  static CUstream_st default_stream;
  return stream != nullptr ? stream : &default_stream;
}

// Does the first work of a stream.
void run_first(CUstream_st* stream) {
  const std::function<cudaError_t()> work = std::move(stream->works.front());
  stream->works.pop_front();
  const cudaError_t error = work();
  if (stream->error == cudaSuccess) stream->error = error;
}

void reach(const std::shared_ptr<Recording>& recording, std::int64_t number) {
  while (recording->done < number && !recording->stream->works.empty())
    run_first(recording->stream);
}

}  // namespace

bool are_late() {
  static const bool late = [] {
    const char* const given = std::getenv("TILEWISE_EMULATED_STREAMS");
    return given != nullptr && std::strcmp(given, "late") == 0;
  }();
  return late;
}

cudaError_t enqueue(cudaStream_t stream, const std::function<cudaError_t()>& work) {
  if (!are_late()) return work();
  const std::lock_guard<std::recursive_mutex> lock(streams_mutex());
  stream_of(stream)->works.push_back(work);
  return cudaSuccess;
}

cudaError_t finish_stream(cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(streams_mutex());
  CUstream_st* const own = stream_of(stream);
  while (!own->works.empty()) run_first(own);
  return std::exchange(own->error, cudaSuccess);
}

}  // namespace tilewise::emulation

using tilewise::emulation::enqueue;
using tilewise::emulation::finish_stream;
using tilewise::emulation::reach;
using tilewise::emulation::stream_of;

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* lowest, int* highest) {
  *lowest = 0;
  *highest = -5;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const cudaError_t error = finish_stream(stream);
  delete stream;
  return error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return finish_stream(stream); }

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const std::lock_guard<std::recursive_mutex> lock(streams_mutex());
  const std::shared_ptr<Recording> recording = event->recording;
  const std::int64_t number = recording->last;
  return enqueue(stream, [recording, number] {
    reach(recording, number);
    return cudaSuccess;
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st();
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return cudaEventCreate(event);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::lock_guard<std::recursive_mutex> lock(streams_mutex());
  const std::shared_ptr<Recording> recording = event->recording;
  const std::int64_t number = ++recording->last;
  recording->stream = stream_of(stream);
  return enqueue(stream, [recording, number] {
    recording->done = number;
    recording->time = std::chrono::steady_clock::now();
    return cudaSuccess;
  });
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const std::lock_guard<std::recursive_mutex> lock(streams_mutex());
  reach(event->recording, event->recording->last);
  return cudaSuccess;
}

// Work is done while a program asks for it.
cudaError_t cudaEventQuery(cudaEvent_t event) { return cudaEventSynchronize(event); }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::chrono::duration<float, std::milli> spent =
      end->recording->time - begin->recording->time;
  *milliseconds = spent.count();
  return cudaSuccess;
}
