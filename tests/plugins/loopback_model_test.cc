// The loopback transport's parameters and its model of a network card.  What every transport does is in conformance_test.cc.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lane.h"
#include "words.h"

namespace test {
namespace {

using namespace std::chrono_literals;

const char* const kLoopback = MK_TEST_LOOPBACK;

// ---- Parameters ----------------------------------------------------------------------------------------------------

TEST_CASE("loopback: parameters that make no sense are refused by name") {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"MKERNEL_LOOPBACK_CONTRACT", "strict"}, {"MKERNEL_LOOPBACK_CONTRACT", ""},
      {"MKERNEL_LOOPBACK_GBPS", "-1"},         {"MKERNEL_LOOPBACK_GBPS", "nan"},
      {"MKERNEL_LOOPBACK_GBPS", "fast"},       {"MKERNEL_LOOPBACK_LATENCY_US", "1e99"},
      {"MKERNEL_LOOPBACK_REORDER", "1.01"},    {"MKERNEL_LOOPBACK_REPEAT", "0.5x"},
      {"MKERNEL_LOOPBACK_FAIL_AFTER", "-1"},   {"MKERNEL_LOOPBACK_DROP_AFTER", "1.5"},
      {"MKERNEL_LOOPBACK_OUTSTANDING", "0"},   {"MKERNEL_LOOPBACK_OUTSTANDING", "99999999999999999999"},
      {"MKERNEL_LOOPBACK_SEED", "seed"},
  };
  for (const auto& [name, value] : cases) {
    INFO(name << "=" << value);
    try {
      const Plugin plugin(kLoopback, {{name, value}});
      FAIL("it was taken");
    } catch (const CheckFailed& failure) {
      CHECK(missing(failure.what(), {std::string(name) + "=" + value + ": must be "}) == "");
    }
  }
}

TEST_CASE("loopback: properties and device follow the parameters") {
  const Plugin plugin(kLoopback, {{"MKERNEL_LOOPBACK_CONTRACT", "completion"},
                                  {"MKERNEL_LOOPBACK_OUTSTANDING", "17"},
                                  {"MKERNEL_LOOPBACK_GBPS", "12.5"}});
  CHECK(plugin.properties().contract == MK_CONTRACT_COMPLETION);
  CHECK(plugin.properties().immediateBits == 32);
  CHECK(plugin.properties().maxOutstanding == 17);
  int devices = 0;
  CHECK(plugin.table().deviceCount(plugin.context(), &devices) == mkSuccess);
  CHECK(devices == 1);
  mkTransportDevice_t device = {};
  CHECK(plugin.table().deviceInfo(plugin.context(), 0, &device) == mkErrorVersion);  // its size was not set
  device.structSize = sizeof(device);
  CHECK(plugin.table().deviceInfo(plugin.context(), 1, &device) == mkErrorInvalidArgument);
  CHECK(plugin.table().deviceInfo(plugin.context(), 0, &device) == mkSuccess);
  CHECK(device.bytesPerSecond == 12500000000u);
}

// ---- The model -----------------------------------------------------------------------------------------------------

TEST_CASE("loopback: latency and bandwidth delay the flag") {
  const Params params = {{"MKERNEL_LOOPBACK_LATENCY_US", "15000"}, {"MKERNEL_LOOPBACK_GBPS", "0.1"}};
  runLoopback(params, Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 2, 1 << 20);  // 10.5 ms each on the link
    // Before rank 0 posts, on whichever rank: the clock is the machine's.
    const auto start = Clock::now();
    rank.barrier();
    if (rank.index == 0) {
      link.postAll(1, {lane.write(0), lane.write(1)});
      link.awaitSent(2);
      expect(Clock::now() - start >= 35ms, "the second write completed before the link and the wire let it");
    } else {
      for (const size_t slot : {0u, 1u}) {
        while (!lane.flagged(slot)) {
          expect(Clock::now() < rank.deadline(), "flag %zu does not come", slot);
          std::this_thread::yield();
        }
        expect(lane.payloadIsThere(slot), "payload %zu is missing", slot);
        expect(Clock::now() - start >= (slot == 0 ? 25ms : 35ms), "flag %zu came too early", slot);
      }
    }
    rank.barrier();
  });
}

TEST_CASE("loopback: without a model a write is delivered inside post") {
  runLoopback({}, Mode::threads, 2, [](Rank& rank) {
    Link link(rank);
    Lane lane(link, 1);
    if (rank.index == 0) {
      const Write write = lane.write(0);
      expect(link.post(1, &write, 1) == 1, "the write is not accepted");
    }
    rank.barrier();
    expect(rank.index == 0 || (lane.flagged(0) && lane.payloadIsThere(0)), "not delivered when post had returned");
    rank.barrier();
  });
}

TEST_CASE("loopback: the ordered contract keeps the order of each queue, and reorders queues") {
  const Params params = {{"MKERNEL_LOOPBACK_REORDER", "0.5"}, {"MKERNEL_LOOPBACK_JITTER_US", "50"}};
  runLoopback(params, Mode::threads, 2, [](Rank& rank) {
    constexpr size_t kSlots = 400;
    constexpr uint32_t kQueues = 4;
    Link link(rank);
    Lane lane(link, kSlots);
    bool overtaken = false;
    size_t sent = 0;
    const auto look = [&] {
      for (size_t slot = kQueues; slot < kSlots; ++slot) {
        const bool seen = lane.flagged(slot);
        const size_t before = slot - kQueues;
        expect(!seen || lane.flagged(before), "write %zu overtook write %zu of its queue", slot, before);
        overtaken |= seen && !lane.flagged(slot - 1);
      }
    };
    // Between two steps the writer does nothing, so that what is held up stays so while the reader looks.
    for (size_t slot = 0; slot < kSlots; slot += 8) {
      rank.barrier();
      if (rank.index == 0) {
        for (size_t i = slot; i < slot + 8; ++i) link.postAll(1, {lane.write(i, static_cast<uint32_t>(i) % kQueues)});
        sent += link.poll().size();
      }
      rank.barrier();
      if (rank.index == 1) look();
    }
    if (rank.index == 0) link.awaitSent(kSlots - sent);
    rank.barrier();
    if (rank.index == 1) {
      look();
      for (size_t slot = 0; slot < kSlots; ++slot) expect(lane.flagged(slot), "flag %zu is missing", slot);
      expect(overtaken, "no write overtook one of another queue");
    }
    rank.barrier();
  });
}

TEST_CASE("loopback: the completion contract reorders and repeats arrivals") {
  const Params params = {{"MKERNEL_LOOPBACK_CONTRACT", "completion"},
                         {"MKERNEL_LOOPBACK_REORDER", "0.5"},
                         {"MKERNEL_LOOPBACK_REPEAT", "1"}};
  runLoopback(params, Mode::threads, 2, [](Rank& rank) {
    constexpr size_t kSlots = 200;
    Link link(rank);
    Lane lane(link, kSlots);
    if (rank.index == 0) {
      std::vector<Write> writes;
      for (size_t slot = 0; slot < kSlots; ++slot) writes.push_back(lane.write(slot));
      link.postAll(1, writes);
      link.awaitSent(kSlots);
    } else {
      std::map<uint32_t, int> arrivals;
      size_t count = 0, overtaken = 0;
      uint32_t newest = 0;
      for (const auto deadline = rank.deadline(); count < 2 * kSlots;) {
        expect(Clock::now() < deadline, "%zu of %zu arrivals", count, 2 * kSlots);
        for (const Event& event : link.poll()) {
          expect(event.kind == MK_EVENT_ARRIVED && event.peer == 0 && event.immediate < kSlots, "a strange event");
          expect(lane.payloadIsThere(event.immediate), "arrival %u before its payload", event.immediate);
          ++count;
          if (++arrivals[event.immediate] == 1) {
            overtaken += event.immediate < newest;
            newest = std::max(newest, event.immediate);
          }
        }
      }
      for (const auto& [immediate, times] : arrivals) expect(times == 2, "write %u arrived %d times", immediate, times);
      expect(overtaken > kSlots / 5, "only %zu writes overtaken", overtaken);
    }
    rank.barrier();
  });
}

TEST_CASE("loopback: one write fails, and none after it succeeds") {
  runLoopback(
      {{"MKERNEL_LOOPBACK_FAIL_AFTER", "5"}, {"MKERNEL_LOOPBACK_LATENCY_US", "200"}}, Mode::threads, 2, [](Rank& rank) {
        constexpr size_t kSlots = 10;
        Link link(rank);
        Lane lane(link, kSlots);
        if (rank.index == 0) {
          std::vector<Write> writes;
          for (size_t slot = 0; slot + 1 < kSlots; ++slot) writes.push_back(lane.write(slot));
          link.postAll(1, writes);
          std::map<uint64_t, int> status;
          int errors = 0;
          const auto collect = [&](size_t until) {
            for (const auto deadline = rank.deadline(); status.size() < until || errors == 0;) {
              expect(Clock::now() < deadline, "%zu completions of %zu, %d errors", status.size(), until, errors);
              for (const Event& event : link.poll()) {
                if (event.kind == MK_EVENT_SENT) status[event.cookie] = event.status;
                if (event.kind != MK_EVENT_ERROR) continue;
                expect(event.peer == 1 && event.status == mkErrorTransport, "error of peer %d", event.peer);
                expect(std::strstr(link.table().lastError(), "FAIL_AFTER") != nullptr, "the reason: %s",
                       link.table().lastError());
                ++errors;
              }
            }
          };
          collect(kSlots - 1);
          link.postAll(1, {lane.write(kSlots - 1)});  // known to be broken by now
          collect(kSlots);
          for (const auto& [slot, result] : status)
            expect(result == (slot < 5 ? mkSuccess : mkErrorTransport), "write %d: status %d", static_cast<int>(slot),
                   result);
          expect(errors == 1, "%d error events", errors);
        }
        rank.barrier();
        if (rank.index == 1)
          for (size_t slot = 0; slot < kSlots; ++slot)
            expect(slot < 5 ? lane.flagged(slot) && lane.payloadIsThere(slot) : lane.untouched(slot),
                   "slot %zu is wrong", slot);
        rank.barrier();
      });
}

TEST_CASE("loopback: dropped writes neither arrive nor complete, and stay outstanding") {
  runLoopback({{"MKERNEL_LOOPBACK_DROP_AFTER", "5"}, {"MKERNEL_LOOPBACK_OUTSTANDING", "4"}}, Mode::threads, 2,
              [](Rank& rank) {
                constexpr size_t kSlots = 20;
                Link link(rank);
                Lane lane(link, kSlots);
                if (rank.index == 0) {
                  size_t posted = 0, sent = 0;
                  for (const auto end = Clock::now() + 50ms; Clock::now() < end;) {
                    if (posted < kSlots) {
                      const Write write = lane.write(posted);
                      posted += static_cast<size_t>(link.post(1, &write, 1));
                    }
                    for (const Event& event : link.poll()) {
                      expect(event.kind == MK_EVENT_SENT && event.status == mkSuccess && event.cookie == sent,
                             "a strange event");
                      ++sent;
                    }
                  }
                  expect(sent == 5 && posted == 5 + 4, "%zu sent, %zu accepted", sent, posted);
                }
                rank.barrier();
                for (size_t slot = 0; rank.index == 1 && slot < kSlots; ++slot)
                  expect(slot < 5 ? lane.flagged(slot) : lane.untouched(slot), "slot %zu is wrong", slot);
                rank.barrier();
              });
}

}  // namespace
}  // namespace test
