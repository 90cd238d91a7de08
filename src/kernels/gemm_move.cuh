// The moving warps of a block where partial results travel, one thread each: loads of A and B, stores of finished chunks to this
// rank and its peers, and flags.
#pragma once

#include "kernels/gemm_start.cuh"

namespace mk::kernels {

// Loads the operands of every step of a tile.  The cluster's blocks have rows of A of their own and share B: each loads half of
// it for both, half of its columns, or, of turned tiles, of K.
template <class C>
class TileLoader {
  using L = typename C::L;

 public:
  __device__ __forceinline__ explicit TileLoader(const Block<C>& b)
      : b_(b), weights_(cachePolicy(b.p.choice.streamsB)) {}

  // Has the cache fetch the operation's B, of which a tile begins at `row` or, where it is not turned, at `col`, for as many steps as
  // will be loaded at once.
  __device__ __forceinline__ void fetch(uint32_t row, uint32_t col, const sched::KSteps& s) const {
    for (uint32_t i = 0; i < b_.stages() && i < s.count; ++i) {
      const uint32_t k = b_.p.kFirst + s.at(i);
      if constexpr (C::kTurned) {
        boxesOfA(row + b_.index * b_.blockRows(), k,
                 [&](uint32_t, uint32_t x, uint32_t y) { prefetchBox(&b_.p.a.whole, x, y, weights_); });
      } else {
        boxesOfB(firstCol(col), k, [&](uint32_t, uint32_t x, uint32_t y) { prefetchBox(&b_.p.b, x, y, weights_); });
      }
    }
  }
  // The first steps of a tile, which tile() goes on with.  Nothing has been loaded yet.  row, col: where it begins in `a` and in
  // `b`.  rows: that it has; not of turned ones.
  __device__ __forceinline__ void begin(const RowMaps& a, const CUtensorMap* b, uint32_t row, uint32_t rows,
                                        uint32_t col, const sched::KSteps& s) {
    part_ = partOf(a, row, rows);
    begun_ = s.count < kFirstSteps ? s.count : kFirstSteps;
    for (uint32_t k = 0; k < begun_; ++k) step(b, firstCol(col), b_.p.kFirst + s.at(k));
  }
  // Their part that is of `a`, for as many steps as there is room for, where `b` may take longer to be there.
  __device__ __forceinline__ void beginA(const RowMaps& a, uint32_t row, uint32_t rows, const sched::KSteps& s) {
    part_ = partOf(a, row, rows);
    begunA_ = s.count < b_.stages() ? s.count : b_.stages();
    for (uint32_t k = 0; k < begunA_; ++k) stepA(b_.p.kFirst + s.at(k), k);
  }
  // atStep(k) is called before the k-th of the steps, if it is not begun.
  template <class AtStep>
  __device__ __forceinline__ void tile(const RowMaps& a, const CUtensorMap* b, uint32_t row, uint32_t rows,
                                       uint32_t col, const sched::KSteps& s, AtStep&& atStep) {
    part_ = partOf(a, row, rows);
    col = firstCol(col);
    for (uint32_t k = begun_; k < s.count; ++k) {
      atStep(k);
      if (k < begunA_) {
        stepB(b, col, b_.p.kFirst + s.at(k));
      } else {
        step(b, col, b_.p.kFirst + s.at(k));
      }
    }
    begun_ = begunA_ = 0;
  }
  // Once all is loaded: until it has been multiplied, in both blocks, so that no arrival is on its way to a block that leaves.
  __device__ __forceinline__ void drain() {
    for (uint32_t i = 0; i < b_.stages(); ++i) {
      barrierWait(b_.at(L::kEmpty + 8 * stage_), parity_);
      next();
    }
  }

 private:
  // So many are on their way before all else is told.
  static constexpr uint32_t kFirstSteps = 2;

  // Of B, that this block loads.
  __device__ __forceinline__ uint32_t firstCol(uint32_t col) const {
    return C::kTurned ? col : col + b_.index * (C::kN / 2);
  }
  // What this block loads of A.  Of rows that do not exist, or that the tile does not have, none but for the last eight: zeros take
  // longer to come than rows do.  What is multiplied in their place gives rows that nobody stores.
  struct Part {
    const CUtensorMap* map;
    uint32_t row, height;
  };
  __device__ __forceinline__ Part partOf(const RowMaps& a, uint32_t row, uint32_t rows) const {
    const uint32_t first = b_.index * b_.blockRows();
    if constexpr (C::kTurned) return {&a.whole, row + first, b_.blockRows()};
    if (rows <= first) return {&a.whole, row, 0};
    if (rows - first <= b_.p.lastRows) return {&a.last, row + first, b_.p.lastRows};
    return {&a.whole, row + first, L::kBlockRows};
  }
  __device__ __forceinline__ void step(const CUtensorMap* b, uint32_t col, uint32_t k) {
    barrierWait(b_.at(L::kEmpty + 8 * stage_), parity_);
    stepA(k, stage_);
    stepB(b, col, k);
  }
  // Into a stage that is free.
  __device__ __forceinline__ void stepA(uint32_t k, uint32_t stage) {
    const uint32_t to = b_.at(stage * b_.stageBytes());
    const uint32_t full = b_.at(L::kFull + 8 * stage);
    barrierExpect(full, part_.height * L::kStepK * 2 + 2 * b_.halfOfB());
    if (part_.height == 0) return;
    boxesOfA(part_.row, k, [&](uint32_t i, uint32_t x, uint32_t y) {
      if constexpr (C::kTurned) {
        loadBox(to + i * kChunkBytes, part_.map, x, y, full, weights_);
      } else {
        loadBox(to + i * kChunkBytes, part_.map, x, y, full);
      }
    });
  }
  __device__ __forceinline__ void stepB(const CUtensorMap* b, uint32_t col, uint32_t k) {
    const uint32_t half = b_.at(stage_ * b_.stageBytes()) + L::kABytes + b_.index * b_.halfOfB();
    const uint32_t full = b_.at(L::kFull + 8 * stage_);
    boxesOfB(col, k, [&](uint32_t i, uint32_t x, uint32_t y) {
      if constexpr (C::kTurned) {
        loadBoxToAll(half + i * kChunkBytes, b, x, y, full, 3);
      } else {
        loadBoxToAll(half + i * kChunkBytes, b, x, y, full, 3, weights_);
      }
    });
    next();
  }
  // The boxes of a step that this block loads: the number of each, and where it begins.
  template <class Box>
  __device__ __forceinline__ void boxesOfA(uint32_t row, uint32_t k, Box&& box) const {
    for (uint32_t i = 0; i < L::kStepK / kBoxK; ++i) box(i, k * L::kStepK + i * kBoxK, row);
  }
  template <class Box>
  __device__ __forceinline__ void boxesOfB(uint32_t col, uint32_t k, Box&& box) const {
    if constexpr (C::kAlongN) {
      for (uint32_t i = 0; i < C::kN / 128; ++i) box(i, col + 64 * i, k * L::kStepK);
    } else {
      box(0, k * L::kStepK + (C::kTurned ? b_.index * kBoxK : 0), col);
    }
  }
  __device__ __forceinline__ void next() {
    if (++stage_ == b_.stages()) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

  const Block<C>& b_;
  const CachePolicy weights_;  // of the operation's B
  Part part_ = {};             // of the tile that is being loaded
  uint32_t stage_ = 0, parity_ = 1, begun_ = 0, begunA_ = 0;
};

// Has the cache fetch B of a cluster's first tile before the launch before has ended: what is not in the cache takes 1 us to come.
// That launch may still be writing B, by way of the same cache (B is this device's own memory), and nothing is read here.  One
// thread of a block, of a rank alone: with others two processes on one GPU have once not ended (perf/RESULTS.md).
template <class C>
__device__ __forceinline__ void fetchAhead(const Block<C>& b, const StepOf<C>& step) {
  const TileLoader<C> loader(b);
  if constexpr (C::kOp == Operation::agGemm) {
    loader.fetch(step.col, step.col, b.stepsOf(step.part));
  } else {
    loader.fetch(step.row, step.col, b.stepsOf(0));
  }
}

// Loads the operands of every tile.  known: `step` is the first, to both blocks, and its loads begin before all else.
template <class C>
__device__ __forceinline__ void load(const Block<C>& b, bool known, StepOf<C> step) {
  using L = typename C::L;
  const bool leads = b.index == 0;
  TileLoader<C> loader(b);
  const sched::KSteps steps = b.stepsOf(0);
  if (known) loader.begin(b.p.a, &b.p.b, step.row, step.rows, step.col, steps);
  Schedule<C> schedule(b);
  TaskReader<C> tasks(b);
  if (leads) {
    if (known) {
      schedule.announceFirst(step);
    } else {
      schedule.claimFirst();
    }
    sharedStoreRelease(b.at(L::kControl), schedule.firstOfAll() ? 1 : 0);
    barrierArrive(b.at(L::kRoleKnown));
  } else if (known) {
    tasks.take();
  }
  for (bool first = true;; first = false) {
    if (!known) {
      if (leads) {
        if (!schedule.announce(&step)) break;
      } else {
        const Task t = tasks.take();
        if (t.kind == taskEnd) break;
        step.row = t.row;
        step.rows = t.rows;
        step.col = t.col;
      }
    }
    known = false;
    loader.tile(b.p.a, &b.p.b, step.row, step.rows, step.col, steps, [](uint32_t) {});
    // One tile ahead, and not before this one's loads are under way: who claims early takes what another would have begun sooner.
    if (leads) {
      if (first) schedule.awaitOthers();
      schedule.claim();
    }
  }
  barrierArrive(b.at(L::kDrained));
  loader.drain();
  if (leads) schedule.drain();
}

// Spreads this warpgroup's stores to peers over time.  The warpgroups of all blocks begin one after the other: what they would
// send at once is 3 us of the link, which every flag behind it would have to wait for.
class Pace {
 public:
  __device__ __forceinline__ Pace(uint32_t ns, uint32_t group)
      : ns_(ns), offset_((blockIdx.x * 2 + group) * ns / (2 * gridDim.x)) {}
  __device__ __forceinline__ void step() {
    if (ns_ == 0) return;
    uint64_t now = clockNs();
    if (next_ == 0) next_ = now + offset_;
    while (now < next_) now = clockNs();
    // Time lost is not made up for.
    next_ = (now < next_ + ns_ ? next_ : now) + ns_;
  }

 private:
  const uint32_t ns_, offset_;
  uint64_t next_ = 0;
};

// What goes ahead of a local peer's entering, on one node: its bank is free once it has published done() of the operation
// before last, and what lies there is used only after both have compared their plans.  With several nodes its rail writes there
// too, and only its entering says that the rail's old writes cannot be repeated any more; nor may user memory be written
// before.
class FreeBanks {
 public:
  // Until local rank `peer`'s is free.
  template <class C, class Platform>
  __device__ __forceinline__ bool await(const Block<C>& b, Platform& platform, uint32_t peer) {
    if ((free_ >> peer & 1) != 0 || platform.epoch() < 2) return true;
    free_ |= 1u << peer;
    // Producer: local rank `peer`, in settle() or FlagKeeper::finish().
    return platform.wait(protocol::heap(b.local(), b.p.memory.controlLayout.doneLocal(peer)), platform.epoch() - 2,
                         protocol::Match::atLeast,
                         protocol::Why{protocol::Stage::done, static_cast<int32_t>(peer), -1, 0});
  }

 private:
  uint32_t free_ = 0;  // a bit for each peer; whoever has waited in vain waits for no other
};

// Stores the chunks of one computing warpgroup.
template <class C>
__device__ __forceinline__ void store(const Block<C>& b, uint32_t group) {
  using L = typename C::L;
  const auto& p = b.p;
  LanePlatform<C::kGeneral> platform(p.memory, sched::Role::compute);
  const uint64_t bank = b.bankData(platform.epoch());
  const uint32_t wireBytes = b.wireBytes(), outBytes = b.outBytes();
  const bool multi = b.multiNode(), staged = b.staged();
  Pace pace(p.choice.paceNs, group);
  TaskReader<C> tasks(b);
  uint32_t count = 0, letGo = 0, handed = 0;  // chunks so far, those whose buffers are free again, bands
  uint32_t openPeers = 0;                     // a bit for each peer that has entered
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
  FreeBanks banks;
  const auto openBank = [&](uint32_t l) {
    if (multi) return open(l);
    if (!bad) require(banks.await(b, platform, l));
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
    const uint32_t row = b.rowOfC(t.row) + b.firstRow(group);
    const uint32_t outPieces = C::kTurned ? (t.cols + 15) / 16 : pieces;
    const bool paced = p.choice.paceNs != 0 && !tasks.knownEnd();
    const bool hands = !mine || staged || multi;
    if (!mine) {
      openBank(t.owner);
    } else if (!multi) {
      // Also where nobody else writes to this rank's C: user memory is written once all have entered with the same plan.
      for (uint32_t l = 0; l < b.locals(); ++l) {
        if (l != b.local()) open(l);
      }
    }
    // Partial results lie by warp, then chunk; staged tiles are images of the chunks.
    char* const partial =
        mine ? nullptr : p.memory.heaps[t.owner] + bank + t.place + b.firstRow(group) * C::kN * wireBytes;
    uint64_t image = 0;
    if constexpr (C::kSpreads) {
      if (staged) image = bank + b.stagedTile(t.tile) + b.firstRow(group) * C::kN * outBytes;
    }
    const auto emptyOf = [&](uint32_t chunk) {
      return b.at(L::kChunkEmpty + 8 * (group * L::kBuffers + chunk % L::kBuffers));
    };
    const auto letAllGo = [&] {
      if (letGo == count) return;
      storesRead<0>();
      for (; letGo < count; ++letGo) barrierArrive(emptyOf(letGo));
    };
    uint32_t j = 0;
    for (uint32_t band = 1; band <= C::kFlagBands; ++band) {
      const uint32_t all = band * (C::kN / C::kFlagBands / chunkCols);
      const uint32_t until = band < C::kFlagBands && all < chunks ? all : chunks;
      // Where there is a buffer for each, one that has just been read is not waited for before the next is stored.
      const bool together = until - j <= L::kBuffers;
      for (; j < until; ++j) {
        const uint32_t slot = group * L::kBuffers + count % L::kBuffers;
        const uint32_t from = b.at(L::kChunks + slot * kChunkBytes);
        barrierWait(b.at(L::kChunkFull + 8 * slot), count / L::kBuffers & 1);
        // The flag warp marks the block before the computing warps add what has not come.
        bad = bad || sharedLoadAcquire(b.at(L::kFailed)) != 0;
        if ((mine && multi) || bad) {  // a node's sum has been stored by those who made it
          ++count;
          letAllGo();  // or the computing warps would wait in vain
          continue;
        }
        if (!mine) {
          for (uint32_t q = 0; q < pieces; ++q) {
            if (paced) pace.step();
            storeBytes(partial + q * (16 * C::kN) * wireBytes + j * kPieceBytes, from + q * kPieceBytes, kPieceBytes);
            if (paced) storesCommit();
          }
        } else {
          const uint32_t x = C::kTurned ? row : t.col + j * chunkCols, y = C::kTurned ? t.col : row;
          storeBox(&p.c, from, x, y);
          if (paced) storesCommit();
          if constexpr (C::kSpreads) {
            for (uint32_t s = 1; s < b.locals(); ++s) {
              const uint32_t l = b.local() + s < b.locals() ? b.local() + s : b.local() + s - b.locals();
              for (uint32_t q = 0; q < outPieces; ++q) {
                if (paced) pace.step();
                if (staged) {
                  storeBytes(p.memory.heaps[l] + image + j * kChunkBytes + q * kPieceBytes, from + q * kPieceBytes,
                             kPieceBytes);
                } else {
                  storeBox(&p.peerC[l], from + q * kPieceBytes, x, y + 16 * q);
                }
                if (paced) storesCommit();
              }
            }
          }
        }
        if (!paced) storesCommit();
        ++count;
        if (paced) {
          letAllGo();
        } else if (!together && letGo + 1 < count) {
          storesRead<1>();
          barrierArrive(emptyOf(letGo++));
        }
      }
      letAllGo();
      if (hands && (band == C::kFlagBands || b.bands() > 1)) {
        storesComplete();
        sharedStoreRelease(b.at(L::kHanded + 4 * group), ++handed);
      }
    }
  }
  // Nobody but who comes after the launch reads what a rank without peers has stored.
  if (b.alone()) {
    storesRead<0>();
  } else {
    storesComplete();
  }
  barrierArrive(b.at(L::kDrained));
}

// Flags, by a warp of their own: a release at system scope can take thousands of cycles.  Waits for the peers' partial results
// of this block's part of own tiles, and raises flags for what the storing warps have stored, tile by tile.
constexpr uint64_t kBlockFinished = uint64_t{1} << 32;

template <class C>
class FlagKeeper {
  using L = typename C::L;
  using OwnLayout = protocol::OwnLayout;
  using Polled = typename LanePlatform<C::kGeneral>::Polled;

 public:
  __device__ __forceinline__ explicit FlagKeeper(const Block<C>& b)
      : b_(b),
        p_(b.p),
        platform_(b.p.memory, sched::Role::compute),
        epoch_(platform_.epoch()),
        flags_(b.bankFlags(epoch_)),
        leaving_(platform_.leaving()) {}

  // Behind a launch that has failed, whose count must not be completed.
  __device__ __forceinline__ bool leaving() const { return leaving_; }
  // Raises flags and watches for the peers', side by side: raising takes long while the link is busy, and so does the wait for
  // what is to be raised.
  __device__ __forceinline__ void tiles() {
    const bool multi = b_.multiNode(), staged = b_.staged();
    TaskReader<C> tasks(b_);
    Task next = {}, out = {}, in = {};  // kind taskEnd: none
    uint32_t outBand = 0;
    bool more = true;
    while (more || next.kind != taskEnd || out.kind != taskEnd || in.kind != taskEnd) {
      if (next.kind == taskEnd && more && tasks.known()) {
        next = tasks.take();
        more = next.kind != taskEnd;
        if (keeps(next) && !multi) ++out_;
      }
      if (next.kind != taskEnd) {
        const bool watches = keeps(next) && b_.locals() > 1;
        const bool raises = gives(next) || multi || staged;
        if ((!watches || in.kind == taskEnd) && (!raises || out.kind == taskEnd)) {
          if (watches) {
            in = next;
            inBand_ = from_ = 0;
            polls_ = {};
          }
          if (raises) {
            out = next;
            outBand = 0;
          }
          next.kind = taskEnd;
        }
      }
      if (out.kind != taskEnd && sharedLoadAcquire(b_.at(L::kHanded)) > handed_ &&
          sharedLoadAcquire(b_.at(L::kHanded + 4)) > handed_) {
        ++handed_;
        platform_.progress();
        if (sharedLoadAcquire(b_.at(L::kFailed)) == 0) raise(out, out.kind == taskMine, outBand);
        if (++outBand == b_.bands()) out.kind = taskEnd;
      }
      if (in.kind != taskEnd && watch(in)) in.kind = taskEnd;
    }
  }
  // After all warps of this block have come to their end.  True: and those of all other blocks.
  __device__ __forceinline__ bool finish() {
    uint64_t* const finished = platform_.own(OwnLayout::finished);
    uint64_t before = 0;
    // Without peers nobody is told anything, and whoever has no tile left uses none of the words that the last resets: the count
    // is on its way while the last tile is being stored.
    const bool alone = b_.alone();
    // A block that is marked already has left out a tile.
    const bool leaving = leaving_ || sharedLoadAcquire(b_.at(L::kFailed)) != 0;
    if (alone && !leaving) before = addRelaxed(finished, kBlockFinished);
    barrierWait(b_.at(L::kDrained), 0);
    if (leaving || sharedLoadAcquire(b_.at(L::kFailed)) != 0) return false;
    // One word counts blocks that have finished and own tiles that are out.
    if (!alone) before = addAcqRel(finished, kBlockFinished | out_);
    if (out_ != 0 && !b_.staged() && b_.locals() > 1 && static_cast<uint32_t>(before) + out_ == p_.ownedParts) {
      // All of this rank's tiles are out, and so all that was sent to it has been read: one fence for all flags.
      const uint64_t done = p_.memory.controlLayout.doneLocal(b_.local());
      fenceSystem();
      for (uint32_t l = 0; l < b_.locals(); ++l) {
        if (l == b_.local()) continue;
        if constexpr (C::kSpreads) storeRelaxed(flag(l, p_.outFlags + b_.local()), epoch_);
        storeRelaxed(reinterpret_cast<uint64_t*>(p_.memory.heaps[l] + done), epoch_);
      }
    }
    return before / kBlockFinished + 1 == gridDim.x;
  }

 private:
  // Of this block's part of a tile.
  __device__ __forceinline__ bool keeps(const Task& t) const {
    if constexpr (C::kSpanning) return t.kind == taskSpanning && b_.shards().keeps(b_.partOf(t));
    return t.kind == taskMine;
  }
  __device__ __forceinline__ bool gives(const Task& t) const {
    if constexpr (C::kSpanning) return t.kind == taskSpanning && b_.shards().gives(b_.partOf(t));
    return t.kind == taskPeers;
  }
  __device__ __forceinline__ uint64_t* flag(uint32_t l, uint64_t word) const {
    return reinterpret_cast<uint64_t*>(p_.memory.heaps[l] + flags_ + word * 8);
  }
  // A step of waiting for the peers' partial results of an own tile; true: the computing warps know of all.
  __device__ __forceinline__ bool watch(const Task& t) {
    // One tile ahead of the computing warps at most: they tell by parity.
    if (inBand_ == 0 && from_ == 0 && watched_ > 0 && !barrierTest(b_.at(L::kPartialTaken), (watched_ - 1) & 1))
      return false;
    const uint32_t peer = sched::unskipSelf(from_, b_.local());
    // Producer: local rank `peer`, in raise().  Last, where the computing warps store the own rows: this launch's control agent.
    const bool entering = C::kSpanning && from_ + 1 == b_.locals();
    const auto polled = platform_.poll(
        entering ? protocol::own(protocol::OwnLayout::allEntered)
                 : protocol::heap(b_.local(), flags_ + b_.partialFlag(t.ownedTile, peer, b_.local(), inBand_) * 8),
        epoch_, protocol::Match::equal,
        entering ? protocol::Why{protocol::Stage::entered, -1, -1, 0}
                 : protocol::Why{protocol::Stage::partial, static_cast<int32_t>(peer), -1, t.tile},
        &polls_);
    if (polled == Polled::notYet) return false;
    if (polled == Polled::leave) sharedStoreRelease(b_.at(L::kFailed), 1);
    polls_ = {};
    if (++from_ + (C::kSpanning ? 0 : 1) < b_.locals()) return false;
    from_ = 0;
    if (inBand_ == 0) {
      ++watched_;
      const char* const bank = p_.memory.heaps[b_.local()] + b_.bankData(epoch_);
      const uint32_t rowBytes = C::kN * b_.wireBytes();
      for (uint32_t group = 0; group < L::kFinishers; ++group) {
        if (b_.rowsOf(t.rows, group) != 0) prefetchBytes(bank + t.place + b_.firstRow(group) * rowBytes, 64 * rowBytes);
      }
    }
    barrierArrive(b_.at(L::kPartialReady + 8 * inBand_));
    if (++inBand_ < b_.bands()) return false;
    for (; inBand_ < C::kFlagBands; ++inBand_) barrierArrive(b_.at(L::kPartialReady + 8 * inBand_));
    return true;
  }
  __device__ __forceinline__ void raise(const Task& t, bool mine, uint32_t band) {
    const uint32_t local = b_.local();
    if constexpr (C::kSpanning) {
      const sched::RowSpan part = b_.partOf(t);
      fenceSystem();
      for (uint32_t l = 0; l < b_.locals(); ++l) {
        if (l != local && b_.shards().has(l, part))
          storeRelaxed(flag(l, b_.partialFlag(t.ownedTile, local, l, band)), epoch_);
      }
    } else if (!mine) {
      storeReleaseSystem(flag(t.owner, b_.partialFlag(t.ownedTile, local, t.owner, band)), epoch_);
    } else if (b_.multiNode()) {
      if (platform_.arrive(OwnLayout::firstCounter(b_.locals(), p_.memory.place.nodes) + t.ownedChunk,
                           uint64_t{tilesInChunk(t.ownedChunk)} * p_.plan.parts))
        storeReleaseDevice(flag(local, nodeSumFlag(t.ownedChunk)), epoch_);
    } else if constexpr (C::kSpreads) {
      fenceSystem();
      for (uint32_t l = 0; l < b_.locals(); ++l) {
        if (l != local)
          storeRelaxed(flag(l, p_.stagedFlags + uint64_t{t.tile} * p_.plan.parts + b_.index * b_.bands() + band),
                       epoch_);
      }
    }
  }

  // Of an own chunk, by its number among this rank's.
  __device__ __forceinline__ uint32_t tilesInChunk(uint32_t ownedChunk) const {
    if constexpr (C::kOp == Operation::gemmRs) {
      const uint32_t node = static_cast<uint32_t>(ownedChunk / p_.plan.shardChunks);
      return p_.plan.tilesIn(node, b_.local(), ownedChunk - node * p_.plan.shardChunks);
    } else {
      return p_.plan.chunks.tilesIn(p_.plan.chunks.ownedChunk(b_.local(), ownedChunk));
    }
  }
  __device__ __forceinline__ uint64_t nodeSumFlag(uint32_t ownedChunk) const {
    if constexpr (C::kOp == Operation::gemmRs) {
      return p_.plan.nodeSumFlagBase() + ownedChunk;
    } else {
      return p_.plan.nodeSumFlag(ownedChunk);
    }
  }

  const Block<C>& b_;
  const typename C::Params& p_;
  LanePlatform<C::kGeneral> platform_;
  const uint64_t epoch_, flags_;
  const bool leaving_;
  uint32_t handed_ = 0, out_ = 0;
  // The own tile that is watched: how far.
  uint32_t watched_ = 0, inBand_ = 0, from_ = 0;
  typename LanePlatform<C::kGeneral>::Polls polls_;
};

}  // namespace mk::kernels
