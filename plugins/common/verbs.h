// Owners of verbs objects: each is destroyed once, with its holder.
#pragma once

#include <infiniband/verbs.h>

#include <memory>

namespace mk::plugin {

template <auto Destroy>
struct Destroyer {
  template <typename T>
  void operator()(T* object) const {
    Destroy(object);
  }
};

using ContextPtr = std::unique_ptr<ibv_context, Destroyer<ibv_close_device>>;
using DomainPtr = std::unique_ptr<ibv_pd, Destroyer<ibv_dealloc_pd>>;
using ChannelPtr = std::unique_ptr<ibv_comp_channel, Destroyer<ibv_destroy_comp_channel>>;
using QueuePtr = std::unique_ptr<ibv_cq, Destroyer<ibv_destroy_cq>>;
using PairPtr = std::unique_ptr<ibv_qp, Destroyer<ibv_destroy_qp>>;
using MemoryPtr = std::unique_ptr<ibv_mr, Destroyer<ibv_dereg_mr>>;
using RoutePtr = std::unique_ptr<ibv_ah, Destroyer<ibv_destroy_ah>>;

}  // namespace mk::plugin
