// See requests.h.
#include "requests.h"

namespace mk::plugin::ibverbs {

Chain::Chain(uint32_t writes) : requests_(2 * size_t{writes}), places_(2 * size_t{writes}), flags_(writes) {}

uint32_t Chain::add(const WirePlan& plan, uint64_t tag, uint64_t number) {
  const uint32_t first = count_;
  const auto append = [&](uint64_t from, uint32_t length, uint32_t key) -> ibv_send_wr& {
    ibv_sge& place = places_[count_];
    place = {from, length, key};
    ibv_send_wr& request = requests_[count_];
    request = {};
    request.wr_id = tag | (number++ & kNumberMask);
    request.sg_list = &place;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_WRITE;
    ++count_;
    return request;
  };
  if (plan.bytes > 0) {
    ibv_send_wr& payload = append(plan.source, static_cast<uint32_t>(plan.bytes), plan.sourceKey);
    payload.wr.rdma.remote_addr = plan.destination;
    payload.wr.rdma.rkey = plan.destinationKey;
  }
  uint64_t& value = flags_[writes_++];
  value = plan.flagValue;
  // Inline: the value travels with the request and is not read from memory later.
  ibv_send_wr& flag = append(reinterpret_cast<uint64_t>(&value), sizeof(value), 0);
  flag.send_flags = IBV_SEND_INLINE;
  flag.wr.rdma.remote_addr = plan.flag;
  flag.wr.rdma.rkey = plan.flagKey;
  if (writes_ % kSignalEvery == 0) flag.send_flags |= IBV_SEND_SIGNALED;
  return count_ - first;
}

ibv_send_wr* Chain::finish() {
  for (uint32_t i = 0; i < count_; ++i) requests_[i].next = i + 1 < count_ ? &requests_[i + 1] : nullptr;
  requests_[count_ - 1].send_flags |= IBV_SEND_SIGNALED;
  return requests_.data();
}

}  // namespace mk::plugin::ibverbs
