// Agents of the CPU platform: fibres that take turns on the calling thread, or threads under ThreadSanitizer, which cannot
// follow fibres and is there to see races between agents.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace mk::emu {

// Stacks for a number of agents, made once, so that a launch allocates none.  One run at a time.
class AgentPool {
 public:
  explicit AgentPool(uint32_t maxAgents);
  ~AgentPool();
  AgentPool(const AgentPool&) = delete;
  AgentPool& operator=(const AgentPool&) = delete;

  uint32_t maxAgents() const { return maxAgents_; }

  // Runs body(0) .. body(count - 1) to their ends; count <= maxAgents.  body must not throw.
  void run(uint32_t count, const std::function<void(uint32_t)>& body);

  // Called inside an agent that has nothing to do: lets others run, and sleeps when none has had anything to do for a while.
  static void idle();
  // Called inside an agent that has got on, so that idle() does not sleep.
  static void busy();

  struct Impl;

 private:
  uint32_t maxAgents_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace mk::emu
