#include "emu/fibre.h"

#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

#include <new>
#include <thread>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#define MK_EMU_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define MK_EMU_THREADS 1
#endif
#endif
#ifndef MK_EMU_THREADS
#define MK_EMU_THREADS 0
#endif

#if defined(__SANITIZE_ADDRESS__)
#define MK_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MK_EMU_ASAN 1
#endif
#endif
#ifndef MK_EMU_ASAN
#define MK_EMU_ASAN 0
#endif
#if MK_EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace mk::emu {

namespace {

// Rounds without progress before sleeping, and for how long: short enough for a loopback hand-over, long enough that eight
// waiting processes leave two cores to those that compute.
constexpr uint32_t kIdleRounds = 64;
constexpr long kIdleSleepNs = 50'000;

void briefSleep() {
  const timespec pause{0, kIdleSleepNs};
  nanosleep(&pause, nullptr);
}

}  // namespace

#if MK_EMU_THREADS

struct AgentPool::Impl {};

AgentPool::AgentPool(uint32_t maxAgents) : maxAgents_(maxAgents), impl_(std::make_unique<Impl>()) {}
AgentPool::~AgentPool() = default;

void AgentPool::run(uint32_t count, const std::function<void(uint32_t)>& body) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (uint32_t i = 0; i < count; ++i) threads.emplace_back([&body, i] { body(i); });
  for (auto& t : threads) t.join();
}

namespace {
thread_local uint32_t idleCount = 0;
}
void AgentPool::idle() {
  if (++idleCount < kIdleRounds) {
    std::this_thread::yield();
  } else {
    briefSleep();
  }
}
void AgentPool::busy() { idleCount = 0; }

#else

namespace {

constexpr size_t kStackBytes = size_t{1} << 20;  // Eigen keeps packed blocks of up to 128 KiB each on the stack
constexpr size_t kGuardBytes = 4096;

struct Fibre {
  ucontext_t context = {};
  char* stack = nullptr;  // above the guard page
  bool finished = false;
};

}  // namespace

struct AgentPool::Impl {
  std::vector<Fibre> fibres;
  ucontext_t scheduler = {};
  const std::function<void(uint32_t)>* body = nullptr;
  uint32_t current = 0;
  bool progress = false;
#if MK_EMU_ASAN
  const void* schedulerStack = nullptr;
  size_t schedulerStackBytes = 0;
#endif

  Impl() = default;
  ~Impl() {
    for (Fibre& f : fibres) {
      if (f.stack != nullptr) munmap(f.stack - kGuardBytes, kStackBytes + kGuardBytes);
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  static void prepare(Fibre& f);
  void enter(uint32_t index);
  void yield(bool last);
  static void trampoline();
};

namespace {
thread_local AgentPool::Impl* active = nullptr;
}

// A function of its own: to the compiler getcontext may return twice, which it then must not in a loop.
void AgentPool::Impl::prepare(Fibre& f) {
  f.finished = false;
  getcontext(&f.context);
  f.context.uc_stack.ss_sp = f.stack;
  f.context.uc_stack.ss_size = kStackBytes;
  f.context.uc_link = nullptr;
  makecontext(&f.context, &Impl::trampoline, 0);
}

void AgentPool::Impl::enter(uint32_t index) {
  current = index;
#if MK_EMU_ASAN
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fibres[index].stack, kStackBytes);
#endif
  swapcontext(&scheduler, &fibres[index].context);
#if MK_EMU_ASAN
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void AgentPool::Impl::yield(bool last) {
  Fibre& self = fibres[current];
#if MK_EMU_ASAN
  void* fake = nullptr;
  // A null place tells the sanitizer that this fibre's frames are gone for good.
  __sanitizer_start_switch_fiber(last ? nullptr : &fake, schedulerStack, schedulerStackBytes);
#endif
  if (last) self.finished = true;
  swapcontext(&self.context, &scheduler);
#if MK_EMU_ASAN
  __sanitizer_finish_switch_fiber(fake, &schedulerStack, &schedulerStackBytes);
#endif
}

void AgentPool::Impl::trampoline() {
  Impl* self = active;
#if MK_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &self->schedulerStack, &self->schedulerStackBytes);
#endif
  (*self->body)(self->current);
  self->yield(true);
}

AgentPool::AgentPool(uint32_t maxAgents) : maxAgents_(maxAgents), impl_(std::make_unique<Impl>()) {
  impl_->fibres.resize(maxAgents);
  for (Fibre& f : impl_->fibres) {
    void* base = mmap(nullptr, kStackBytes + kGuardBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    mprotect(base, kGuardBytes, PROT_NONE);
    f.stack = static_cast<char*>(base) + kGuardBytes;
  }
}

AgentPool::~AgentPool() = default;

void AgentPool::run(uint32_t count, const std::function<void(uint32_t)>& body) {
  Impl& pool = *impl_;
  pool.body = &body;
  Impl* outer = active;
  active = &pool;
  for (uint32_t i = 0; i < count; ++i) pool.prepare(pool.fibres[i]);
  uint32_t alive = count;
  uint32_t idleRounds = 0;
  while (alive > 0) {
    pool.progress = false;
    for (uint32_t i = 0; i < count; ++i) {
      if (pool.fibres[i].finished) continue;
      pool.enter(i);
      if (pool.fibres[i].finished) {
        --alive;
        pool.progress = true;
      }
    }
    if (pool.progress) {
      idleRounds = 0;
    } else if (++idleRounds < kIdleRounds) {
      std::this_thread::yield();
    } else {
      briefSleep();
    }
  }
  active = outer;
}

void AgentPool::idle() {
  if (active != nullptr) {
    active->yield(false);
  } else {
    std::this_thread::yield();  // an agent of no pool: a thread of its own
  }
}
void AgentPool::busy() {
  if (active != nullptr) active->progress = true;
}

#endif

}  // namespace mk::emu
