#include "emu/launch.h"

namespace mk::emu {

protocol::FailRecord runLaunch(Agents& agents, const RankMemory& memory, uint32_t count,
                               const std::function<void(Launch&, uint32_t)>& body) {
  Launch launch;
  launch.memory = &memory;
  launch.waits = &agents.waits;
  launch.epoch = memory.ownWord(protocol::OwnLayout::epoch).load(std::memory_order_acquire) + 1;
  launch.lastProgress.store(nowNs(), std::memory_order_relaxed);
  agents.waits.progress(launch.lastProgress.load(std::memory_order_relaxed));
  callHook(memory.rank, launch.epoch, Point::launch, 0);
  agents.pool.run(count, [&](uint32_t index) {
    try {
      body(launch, index);
    } catch (...) {  // the product's own blocking buffers could not be allocated
      BasePlatform(launch, index).fail(protocol::FailRecord::internal, {}, 0, 0);
    }
  });
  return launch.record;
}

}  // namespace mk::emu
