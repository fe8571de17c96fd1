#include "ranks.h"

namespace gpt {

template <class T>
void Ranks::sum(std::vector<T>& values) const {
  constexpr double kTimeoutSeconds = 300;
  std::vector<std::vector<T>> all(static_cast<std::size_t>(size()));
  std::vector<tilewise_message> sends, receives;
  const auto bytes = static_cast<std::int64_t>(values.size() * sizeof(T));
  for (std::int32_t peer = 0; peer < size(); ++peer) {
    std::vector<T>& theirs = all[static_cast<std::size_t>(peer)];
    theirs = values;
    if (peer == rank()) continue;
    sends.push_back({values.data(), bytes, peer, 0});
    receives.push_back({theirs.data(), bytes, peer, 0});
  }
  const auto count = static_cast<std::int32_t>(sends.size());
  const tilewise_exchange request = {sends.data(), receives.data(), count, count, kTimeoutSeconds};
  std::int32_t failed_rank = -1;
  tilewise::check(communicator_.exchange(communicator_.self, &request, &failed_rank));
  values = std::move(all[0]);
  for (std::size_t peer = 1; peer < all.size(); ++peer) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] += all[peer][i];
  }
}

template void Ranks::sum(std::vector<float>&) const;
template void Ranks::sum(std::vector<double>&) const;

}  // namespace gpt
