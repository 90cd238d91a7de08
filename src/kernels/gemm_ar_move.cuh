// The moving warps of a block of the GEMM+AllReduce kernel, one thread each: loads of A and B, stores of finished chunks to this
// rank and its peers, and flags.
#pragma once

#include "kernels/gemm_ar_block.cuh"

namespace mk::kernels {

// Loads the operands of every step of every tile.  The cluster's blocks have rows of A of their own and share B: each loads
// half of it for both.
template <class C>
__device__ __forceinline__ void load(const Block<C>& b) {
  using L = typename C::L;
  const GemmArParams& p = b.p;
  const bool leads = b.index == 0;
  Schedule<C> schedule(b);
  TaskReader<C> tasks(b);
  if (leads) {
    schedule.claim();
    sharedStoreRelease(b.at(L::kControl), schedule.firstOfAll() ? 1 : 0);
    barrierArrive(b.at(L::kRoleKnown));
  }
  uint32_t stage = 0, parity = 1;
  for (bool first = true;; first = false) {
    uint32_t row = 0, col = 0;
    if (leads) {
      if (!schedule.announce(&row, &col)) break;
      if (!first) schedule.claim();
    } else {
      const Task t = tasks.take();
      if (t.kind == taskEnd) break;
      row = t.row;
      col = t.col;
    }
    row += b.index * kBlockRows;
    col += b.index * (C::kN / 2);
    for (uint32_t k = p.kFirst; k < p.kFirst + p.kSteps; ++k) {
      const uint32_t to = b.at(stage * L::kStageBytes);
      const uint32_t full = b.at(L::kFull + 8 * stage);
      barrierWait(b.at(L::kEmpty + 8 * stage), parity);
      barrierExpect(full, L::kStageBytes);
      loadBox(to, &p.a, k * kStepK, row, full);
      const uint32_t half = to + L::kABytes + b.index * (L::kBBytes / 2);
      if constexpr (C::kAlongN) {
        for (uint32_t i = 0; i < C::kN / 128; ++i)
          loadBoxToAll(half + i * kChunkBytes, &p.b, col + 64 * i, k * kStepK, full, 3);
      } else {
        loadBoxToAll(half, &p.b, k * kStepK, col, full, 3);
      }
      if (++stage == L::kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    if (leads && first) {
      schedule.awaitOthers();
      schedule.claim();
    }
  }
  barrierArrive(b.at(L::kDrained));
}

// Spreads this warpgroup's stores to peers over time.
class Pace {
 public:
  __device__ __forceinline__ explicit Pace(uint32_t ns) : ns_(ns) {}
  __device__ __forceinline__ void step() {
    uint64_t now = clockNs();
    while (now < next_) now = clockNs();
    const uint64_t before = now - ns_;  // time lost is not made up for
    next_ = (before > next_ ? before : next_) + ns_;
  }

 private:
  const uint32_t ns_;
  uint64_t next_ = 0;
};

// Stores the chunks of one computing warpgroup.
template <class C>
__device__ __forceinline__ void store(const Block<C>& b, uint32_t group) {
  using L = typename C::L;
  const GemmArParams& p = b.p;
  LanePlatform<C::kGeneral> platform(p.memory, sched::Role::compute);
  const uint64_t bank = b.bankData(platform.epoch());
  const uint32_t wireBytes = b.wireBytes(), outBytes = b.outBytes();
  const bool multi = b.multiNode(), staged = b.staged();
  Pace pace(p.choice.paceNs);
  TaskReader<C> tasks(b);
  uint32_t count = 0, handed = 0;         // chunks so far, tiles
  uint32_t openBanks = 0, openPeers = 0;  // a bit for each peer whose bank may be written, that has entered
  bool bad = false;
  const auto require = [&](bool ok) {
    if (ok) return;
    bad = true;
    sharedStoreRelease(b.at(L::kFailed), 1);
  };
  const auto open = [&](uint32_t l) {
    if (bad || (openPeers >> l & 1) != 0) return;
    openPeers |= 1u << l;
    // Producer: this launch's control agent, once the peer has entered.
    require(platform.wait(protocol::own(protocol::OwnLayout::peerOpen(l)), platform.epoch(), protocol::Match::equal,
                          protocol::Why{protocol::Stage::entered, static_cast<int32_t>(l), -1, 0}));
  };
  // On one node a partial result goes ahead of the peer's entering: its bank is free once it has published done() of the
  // operation before last, and what lies there is used only after both have compared their plans.  With several nodes its rail
  // writes there too, and only its entering says that the rail's old writes cannot be repeated any more.
  const auto openBank = [&](uint32_t l) {
    if (multi) return open(l);
    if (bad || (openBanks >> l & 1) != 0) return;
    openBanks |= 1u << l;
    if (platform.epoch() < 2) return;
    // Producer: local rank l, in settle() or FlagKeeper::finish().
    require(platform.wait(protocol::heap(b.local(), p.memory.controlLayout.doneLocal(l)), platform.epoch() - 2,
                          protocol::Match::atLeast,
                          protocol::Why{protocol::Stage::done, static_cast<int32_t>(l), -1, 0}));
  };
  for (;;) {
    const Task t = tasks.take();
    if (t.kind == taskEnd) break;
    const bool mine = t.kind == taskMine;
    const uint32_t rows = b.rowsOf(t.rows, group);
    const uint32_t pieces = (rows + 15) / 16;
    const uint32_t bytes = mine && !multi ? outBytes : wireBytes;
    const uint32_t chunkCols = 128 / bytes;
    const uint32_t chunks = rows == 0 ? 0 : (t.cols + chunkCols - 1) / chunkCols;
    const uint32_t row = t.row + b.index * kBlockRows + group * 64;
    const bool paced = p.choice.paceNs != 0 && !tasks.knownEnd();
    if (!mine) {
      openBank(t.owner);
    } else if (!multi) {
      for (uint32_t l = 0; l < b.locals(); ++l) {
        if (l != b.local()) open(l);
      }
    }
    // Partial results lie by warp, then chunk; staged tiles are images of the chunks.
    char* const partial =
        mine ? nullptr : p.memory.heaps[t.owner] + bank + t.place + (b.index * 2 + group) * (64 * C::kN) * wireBytes;
    const uint64_t image = staged ? bank + b.stagedTile(t.tile) + (b.index * 2 + group) * (64 * C::kN) * outBytes : 0;
    uint32_t held = 0;
    for (uint32_t j = 0; j < chunks; ++j, ++count) {
      const uint32_t slot = group * L::kBuffers + count % L::kBuffers;
      const uint32_t from = b.at(L::kChunks + slot * kChunkBytes);
      const uint32_t empty = b.at(L::kChunkEmpty + 8 * slot);
      barrierWait(b.at(L::kChunkFull + 8 * slot), count / L::kBuffers & 1);
      if ((mine && multi) || bad) {  // a node's sum has been stored by those who made it
        barrierArrive(empty);
        continue;
      }
      if (!mine) {
        for (uint32_t q = 0; q < pieces; ++q) {
          if (paced) pace.step();
          storeBytes(partial + q * (16 * C::kN) * wireBytes + j * kPieceBytes, from + q * kPieceBytes, kPieceBytes);
          if (paced) storesCommit();
        }
      } else {
        const uint32_t x = t.col + j * chunkCols;
        storeBox(&p.c, from, x, row);
        if (paced) storesCommit();
        for (uint32_t s = 1; s < b.locals(); ++s) {
          const uint32_t l = b.local() + s < b.locals() ? b.local() + s : b.local() + s - b.locals();
          for (uint32_t q = 0; q < pieces; ++q) {
            if (paced) pace.step();
            if (staged) {
              storeBytes(p.memory.heaps[l] + image + j * kChunkBytes + q * kPieceBytes, from + q * kPieceBytes,
                         kPieceBytes);
            } else {
              storeBox(&p.peerC[l], from + q * kPieceBytes, x, row + 16 * q);
            }
            if (paced) storesCommit();
          }
        }
      }
      if (paced) {
        storesRead<0>();
        barrierArrive(empty);
      } else {
        storesCommit();
        if (held != 0) {
          storesRead<1>();
          barrierArrive(held);
        }
        held = empty;
      }
    }
    if (held != 0) {
      storesRead<0>();
      barrierArrive(held);
    }
    if (!mine || staged || multi) {
      storesComplete();
      sharedStoreRelease(b.at(L::kHanded + 4 * group), ++handed);
    }
  }
  storesComplete();
  barrierArrive(b.at(L::kDrained));
}

// Flags, by a warp of their own: a release at system scope can take thousands of cycles.  Waits for the peers' partial results
// of this block's part of own tiles, and raises flags for what the storing warps have stored, tile by tile.
constexpr uint64_t kBlockFinished = uint64_t{1} << 32;

template <class C>
class FlagKeeper {
  using L = typename C::L;
  using OwnLayout = protocol::OwnLayout;

 public:
  __device__ __forceinline__ explicit FlagKeeper(const Block<C>& b)
      : b_(b),
        p_(b.p),
        platform_(b.p.memory, sched::Role::compute),
        epoch_(platform_.epoch()),
        flags_(b.bankFlags(epoch_)) {}

  __device__ __forceinline__ void tiles() {
    const bool multi = b_.multiNode(), staged = b_.staged();
    TaskReader<C> tasks(b_);
    for (;;) {
      const Task t = tasks.take();
      if (t.kind == taskEnd) break;
      const bool mine = t.kind == taskMine;
      if (mine && b_.locals() > 1) watch(t);
      if (mine && !multi) ++out_;
      if (mine && !staged && !multi) continue;
      ++awaited_;
      while (sharedLoadAcquire(b_.at(L::kHanded)) < awaited_ || sharedLoadAcquire(b_.at(L::kHanded + 4)) < awaited_) {
      }
      platform_.progress();
      if (sharedLoadAcquire(b_.at(L::kFailed)) == 0) raise(t, mine);
    }
  }
  // After all warps of this block have come to their end.
  __device__ __forceinline__ void finish() {
    barrierWait(b_.at(L::kDrained), 0);
    if (sharedLoadAcquire(b_.at(L::kFailed)) != 0) return;
    // One word counts blocks that have finished and own tiles that are out.
    const uint64_t before = addAcqRel(platform_.own(OwnLayout::finished), kBlockFinished | out_);
    if (out_ == 0 || b_.staged() || b_.locals() == 1 || static_cast<uint32_t>(before) + out_ != p_.ownedParts) return;
    // All of this rank's tiles are out, and so all that was sent to it has been read: one fence for both flags.
    const uint64_t done = p_.memory.controlLayout.doneLocal(b_.local());
    fenceSystem();
    for (uint32_t l = 0; l < b_.locals(); ++l) {
      if (l == b_.local()) continue;
      storeRelaxed(flag(l, p_.outFlags + b_.local()), epoch_);
      storeRelaxed(reinterpret_cast<uint64_t*>(p_.memory.heaps[l] + done), epoch_);
    }
  }

 private:
  __device__ __forceinline__ uint64_t* flag(uint32_t l, uint64_t word) const {
    return reinterpret_cast<uint64_t*>(p_.memory.heaps[l] + flags_ + word * 8);
  }
  __device__ __forceinline__ void watch(const Task& t) {
    bool ok = true;
    for (uint32_t l = 0; ok && l < b_.locals(); ++l) {
      if (l == b_.local()) continue;
      // Producer: local rank l, in raise().
      ok = platform_.wait(protocol::heap(b_.local(), flags_ + b_.partialFlag(t.ownedTile, l, b_.local()) * 8), epoch_,
                          protocol::Match::equal,
                          protocol::Why{protocol::Stage::partial, static_cast<int32_t>(l), -1, t.tile});
    }
    if (!ok) sharedStoreRelease(b_.at(L::kFailed), 1);
    const char* const bank = p_.memory.heaps[b_.local()] + b_.bankData(epoch_);
    const uint32_t part = 64 * C::kN * b_.wireBytes();
    for (uint32_t group = 0; group < 2; ++group) {
      if (b_.rowsOf(t.rows, group) != 0) prefetchBytes(bank + t.place + (b_.index * 2 + group) * part, part);
    }
    // One tile ahead of the computing warps at most: they tell by parity.
    if (watched_ > 0) barrierWait(b_.at(L::kPartialTaken), (watched_ - 1) & 1);
    ++watched_;
    barrierArrive(b_.at(L::kPartialReady));
  }
  __device__ __forceinline__ void raise(const Task& t, bool mine) {
    const uint32_t local = b_.local();
    if (!mine) {
      storeReleaseSystem(flag(t.owner, b_.partialFlag(t.ownedTile, local, t.owner)), epoch_);
    } else if (b_.multiNode()) {
      const uint64_t chunk = p_.plan.chunks.ownedChunk(local, t.ownedChunk);
      if (platform_.arrive(OwnLayout::firstCounter(b_.locals(), p_.memory.place.nodes) + t.ownedChunk,
                           uint64_t{p_.plan.chunks.tilesIn(chunk)} * p_.plan.parts))
        storeReleaseDevice(flag(local, p_.plan.nodeSumFlag(t.ownedChunk)), epoch_);
    } else {
      fenceSystem();
      for (uint32_t l = 0; l < b_.locals(); ++l) {
        if (l != local)
          storeRelaxed(flag(l, p_.stagedFlags + uint64_t{t.tile} * sched::kClusterBlocks + b_.index), epoch_);
      }
    }
  }

  const Block<C>& b_;
  const GemmArParams& p_;
  LanePlatform<C::kGeneral> platform_;
  const uint64_t epoch_, flags_;
  uint32_t awaited_ = 0, out_ = 0, watched_ = 0;
};

}  // namespace mk::kernels
