// The moving warps of a block of the AllGather+GEMM kernel.  Warp 0 (one thread) loads A, where it has come to, and B; warp 1 (all
// its threads) looks whether the rows under the tiles to come are there; warp 2 (one thread) stores finished chunks to C; warp 3
// (one thread) copies rows: of this rank's shard, and of what other nodes send, to the local peers, to where tiles that span shards
// have all rows from, and to the caller's gathered A.  The steps of the last are those of protocol::AgGemm.
#pragma once

#include "kernels/gemm_move.cuh"
#include "protocol/ag_gemm.h"

namespace mk::kernels {

// ---- Loads

template <class C>
__device__ __forceinline__ bool isOwnRows(const Block<C>& b, uint32_t node, uint32_t local) {
  return local == b.local() && (!b.multiNode() || node == b.p.memory.place.node);
}

// Which matrix has the rows of a shard, or of the whole A, and in which of its rows they begin.
template <class C>
struct RowsSource {
  const RowMaps* maps;
  const CUtensorMap* turned;  // of turned tiles, in its stead
  uint32_t row;
  __device__ __forceinline__ RowsSource(const Block<C>& b, uint64_t epoch, uint32_t node, uint32_t local, uint32_t rank)
      : maps(&b.p.a), turned(&b.p.b), row(0) {
    const AgGemmParams& p = b.p;
    if (isOwnRows(b, node, local)) return;
    if (p.plan.windowed() && local != b.local()) {
      maps = &p.all;
      row = rank * p.order.height;
    } else {
      maps = &p.banks[epoch & 1];
      row = (p.plan.windowed() ? node : rank) * p.order.height;
    }
    turned = &maps->whole;
  }
};

// known: `step` is the first tile, to both blocks; of own rows its loads begin before all else.
template <class C>
__device__ __forceinline__ void loadRows(const Block<C>& b, bool known, sched::AgStep step) {
  using L = typename C::L;
  const AgGemmParams& p = b.p;
  const bool leads = b.index == 0;
  TileLoader<C> loader(b);
  if (known && isOwnRows(b, step.node, step.local)) {
    if constexpr (C::kTurned) {
      loader.begin(p.a, &p.b, step.col, 0, step.shardRow, b.stepsOf(step.part));
    } else {
      loader.begin(p.a, &p.b, step.shardRow, step.rows, step.col, b.stepsOf(step.part));
    }
  } else if (C::kTurned && known) {
    loader.beginA(p.a, step.col, 0, b.stepsOf(step.part));
  }
  const uint64_t epoch = loadRelaxed(p.memory.own + protocol::OwnLayout::epoch) + 1;
  Schedule<C> schedule(b);
  TaskReader<C> tasks(b);
  // Tiles are told when the loads of the one before are nearly all under way: then the rows under them can be looked for.
  constexpr uint32_t kAhead = 6;
  const uint32_t slices = p.moves.slices, sliceSteps = p.moves.sliceCols / L::kStepK;
  bool more = true;
  if (leads) {
    if (known) {
      schedule.announceFirst(step);
    } else {
      schedule.claimFirst();
      more = schedule.announce(&step);
    }
  } else if (known) {
    tasks.takeRows();
  }
  for (uint32_t number = 1;; ++number) {
    if (leads) {
      if (!more) break;
    } else if (number > 1 || !known) {
      const RowsTask t = tasks.takeRows();
      if (t.kind == taskEnd) break;
      step.node = t.node;
      step.local = t.local;
      step.rank = t.rank;
      step.shardRow = t.shardRow;
      step.rows = t.rows;
      step.col = t.col;
      step.part = t.part;
    }
    const sched::KSteps steps = b.stepsOf(step.part);
    const uint32_t claimAt = steps.count > kAhead + 2 ? steps.count - kAhead - 2 : 0;
    const uint32_t announceAt = steps.count > kAhead ? steps.count - kAhead : 1;
    const bool own = isOwnRows(b, step.node, step.local);
    const RowsSource<C> from(b, epoch, step.node, step.local, step.rank);
    bool claimed = !leads, told = !leads;
    const auto claim = [&] {
      if (number == 1) schedule.awaitOthers();
      schedule.claim();
      claimed = true;
    };
    uint32_t slice = 0, nextSlice = 0;  // and the step with which it begins
    const auto atStep = [&](uint32_t k) {
      if (!own && steps.at(k) >= nextSlice) {
        do {
          ++slice;
          nextSlice = slice == slices ? ~0u : nextSlice + sliceSteps;
        } while (steps.at(k) >= nextSlice);
        // Producer: this block's warp 1, in watchRows().
        while (sharedLoadAcquire(b.at(L::kRowsKnown)) < (number - 1) * slices + slice) {
        }
        fenceAsyncGlobal();
      }
      if (!claimed && k >= claimAt) {
        claim();
      } else if (claimed && !told && k >= announceAt) {
        more = schedule.announce(&step);
        told = true;
      }
    };
    if constexpr (C::kTurned) {
      loader.tile(p.a, from.turned, step.col, 0, from.row + step.shardRow, steps, atStep);
    } else {
      loader.tile(*from.maps, &p.b, from.row + step.shardRow, step.rows, step.col, steps, atStep);
    }
    if (!claimed) claim();
    if (!told) more = schedule.announce(&step);
  }
  barrierArrive(b.at(L::kDrained));
  loader.drain();
  if (leads) schedule.drain();
}

// For whose chunk of a tile's rows: of the whole A it is known by its number.
template <class C>
__device__ __forceinline__ protocol::Why whyOf(const Block<C>& b, const RowsTask& t, uint32_t chunk) {
  if (t.local != b.locals()) return {protocol::Stage::peerRows, static_cast<int32_t>(t.local), -1, chunk};
  // On one node local ranks are numbered as ranks are.
  const uint32_t rank = b.p.moves.byChunks.divide(chunk), inShard = chunk - rank * b.p.moves.mostChunks;
  if (rank == b.local()) return {protocol::Stage::ownRows, -1, -1, inShard};
  return {protocol::Stage::peerRows, static_cast<int32_t>(rank), -1, inShard};
}

// All threads of a warp.  Until the rows under this block's part of each tile are there; one flag a thread.  After a failure it
// lets everyone go on: the block stores nothing more.
template <class C>
__device__ __forceinline__ void watchRows(const Block<C>& b, uint32_t lane) {
  using L = typename C::L;
  const AgGemmParams& p = b.p;
  LanePlatform<C::kGeneral> platform(p.memory, sched::Role::compute);
  const uint64_t epoch = platform.epoch(), flags = b.bankFlags(epoch);
  TaskReader<C> tasks(b);
  const uint32_t slices = p.moves.slices;
  bool failed = false;
  for (uint32_t number = 1;; ++number) {
    RowsTask t = {};
    if (lane == 0) t = tasks.takeRows();
    const auto share = [](uint32_t* v) { *v = __shfl_sync(0xffffffffu, *v, 0); };
    share(&t.kind);
    if (t.kind == taskEnd) return;
    share(&t.node);
    share(&t.local);
    share(&t.rank);
    share(&t.firstChunk);
    share(&t.endChunk);
    for (uint32_t slice = 0; slice < slices && !failed && !isOwnRows(b, t.node, t.local); ++slice) {
      for (uint32_t chunk = t.firstChunk + lane; chunk < t.endChunk && !failed; chunk += 32) {
        protocol::Why why = whyOf(b, t, chunk);
        uint64_t offset = flags + p.moves.chunkFlag(t.rank, chunk, slice) * 8;
        if (b.multiNode() && t.local == b.local()) {
          const uint32_t distance = p.moves.distanceTo(t.node);
          why = protocol::Why{protocol::Stage::railRows, -1, static_cast<int32_t>(t.node), chunk};
          offset = sched::arrivalFlag(p.memory.heapLayout, p.memory.controlLayout, p.moves.slot(distance, chunk),
                                      p.moves.sender(distance), epoch);
        }
        // Producer: local rank t.local, or whose the chunk is, in Mover::raise(); or, of my own rail, the node before or t.node,
        // in send().
        failed = !platform.wait(protocol::heap(b.local(), offset), epoch, protocol::Match::equal, why);
      }
      // The rows were written by copy units, peers' ones too, or by a card, and the copy unit reads them next.
      fenceAsyncGlobal();
      failed = __any_sync(0xffffffffu, failed);
      __syncwarp();  // what all lanes have seen is what the first tells of
      if (lane == 0) {
        if (failed) sharedStoreRelease(b.at(L::kFailed), 1);
        platform.progress();
        sharedStoreRelease(b.at(L::kRowsKnown), (number - 1) * slices + slice + 1);
      }
      __syncwarp();
    }
    if (lane == 0) sharedStoreRelease(b.at(L::kRowsKnown), number * slices);
  }
}

// ---- Stores to C

// The chunks of both computing warpgroups, which finish them at about the same time.
template <class C>
__device__ __forceinline__ void storeTiles(const Block<C>& b) {
  using L = typename C::L;
  const AgGemmParams& p = b.p;
  LanePlatform<C::kGeneral> platform(p.memory, sched::Role::compute);
  TaskReader<C> tasks(b);
  const uint32_t chunkCols = 128 / b.outBytes();
  uint32_t counts[2] = {}, free[2] = {};  // chunks so far, and those whose buffers are free again
  uint32_t held = 0;  // where they are let go one by one, barrier of the chunk whose store is the newest
  bool entered = false, bad = false;
  const auto emptyOf = [&](uint32_t group, uint32_t chunk) {
    return b.at(L::kChunkEmpty + 8 * (group * L::kBuffers + chunk % L::kBuffers));
  };
  const auto letGo = [&] {
    storesRead<0>();
    if (held != 0) barrierArrive(held);
    held = 0;
    for (uint32_t group = 0; group < 2; ++group) {
      for (; free[group] < counts[group]; ++free[group]) barrierArrive(emptyOf(group, free[group]));
    }
  };
  for (;;) {
    const RowsTask t = tasks.takeRows();
    if (t.kind == taskEnd) break;
    // User memory is written once all have entered with the same plan, and not by a launch that only leaves: those of the one that
    // failed had entered.
    if (!entered && !bad && (!b.alone() || b.split())) {
      // Producer: this launch's control agent.  Alone there is nobody to wait for; but parts of a launch that failed may be
      // counted still.
      bad = platform.leaving() ||
            (!b.alone() && !platform.wait(protocol::own(protocol::OwnLayout::allEntered), platform.epoch(),
                                          protocol::Match::equal, protocol::Why{protocol::Stage::entered, -1, -1, 0}));
      if (bad) sharedStoreRelease(b.at(L::kFailed), 1);
    }
    entered = true;
    const bool whole = t.rank < p.wholeShards;
    const CUtensorMap* const map = whole ? &p.c : &p.shortC;
    const uint32_t all = (t.cols + chunkCols - 1) / chunkCols;
    // Where there is a buffer for each, one that has just been read is not waited for before the next is stored.
    const bool together = all <= L::kBuffers;
    uint32_t elsewhere = 0;  // a bit for each warpgroup whose part of the tile another cluster finishes
    for (uint32_t j = 0; j < all; ++j) {
      for (uint32_t group = 0; group < 2; ++group) {
        if (b.rowsOf(t.rows, group) == 0 || (elsewhere >> group & 1) != 0) continue;
        const uint32_t slot = group * L::kBuffers + counts[group] % L::kBuffers;
        barrierWait(b.at(L::kChunkFull + 8 * slot), counts[group] / L::kBuffers & 1);
        ++counts[group];
        if (b.split() && sharedLoadAcquire(b.at(L::kNothing + 4 * slot)) != 0) {
          elsewhere |= 1u << group;
          if (!together) barrierArrive(emptyOf(group, free[group]++));
          continue;
        }
        bad = bad || sharedLoadAcquire(b.at(L::kFailed)) != 0;
        if (bad) {
          letGo();  // or the computing warps would wait in vain
          continue;
        }
        const uint32_t col = C::kTurned ? t.col + b.firstRow(group) : t.col + sched::chunkCol(j, chunkCols, C::kN);
        const uint32_t row = C::kTurned ? t.shardRow : t.shardRow + b.firstRow(group);
        const uint32_t from = b.at(L::kChunks + slot * kChunkBytes);
        if (C::kTurned && b.blockRows() != L::kBlockRows) {
          storePlane(&p.c, from, 0, col / b.blockRows(), row);
        } else {
          storePlane(map, from, col, row, whole ? t.rank : 0);
        }
        storesCommit();
        if (together) continue;
        if (held != 0) {
          storesRead<1>();
          barrierArrive(held);
        }
        held = emptyOf(group, free[group]++);
      }
    }
    letGo();
  }
  // Nobody but who comes after the launch reads C.
  storesRead<0>();
  barrierArrive(b.at(L::kDrained));
}

// ---- Copies of rows

template <class C>
class Mover {
  using L = typename C::L;
  using Moves = sched::AgMoves;
  using OwnLayout = protocol::OwnLayout;
  using Stage = protocol::Stage;
  using Why = protocol::Why;

 public:
  __device__ __forceinline__ explicit Mover(const Block<C>& b)
      : b_(b),
        p_(b.p),
        moves_(b.p.moves),
        platform_(b.p.memory, sched::Role::move),
        bank_(b.bankData(platform_.epoch())),
        flags_(b.bankFlags(platform_.epoch())),
        pace_(b.p.choice.paceNs, 0) {}

  // False: it left early.
  __device__ __forceinline__ bool run() {
    bool ok = true;
    const uint32_t movers = p_.choice.movers;
    // Where all blocks move rows none has to ask.
    if (movers >= gridDim.x || (movers != 0 && platform_.claim(OwnLayout::moveTicket) < movers))
      ok = moves() && copies();
    storesComplete();
    return ok;
  }

 private:
  __device__ __forceinline__ bool moves() {
    for (;;) {
      const uint64_t number = platform_.claim(OwnLayout::claimMove);
      const bool leaving = platform_.leaving();
      if (number >= moves_.moves) break;
      if (leaving) return false;
      const Moves::Move t = moves_.move(static_cast<uint32_t>(number));
      if (!t.exists) continue;
      if (t.distance > 0 && !awaitChunk(t.from, t.chunk)) return false;
      const uint64_t row = t.chunk * moves_.chunkRows;
      const uint32_t rows = moves_.rowsIn(t.from.rank, static_cast<uint32_t>(t.chunk));
      bool ok = true;
      if (t.target == Moves::Target::bank && b_.multiNode()) {
        ok = copy(rowsOf(t.from, row), inBank(b_.local(), t.from, row), moves_.rowBytes, rows, [&] {
          return own(OwnLayout::bankOpen, Why{Stage::bank, -1, -1, 0});
        });
        storesComplete();
        if (ok) storeReleaseSystem(flag(b_.local(), moves_.chunkFlag(t.from.rank, t.chunk)), platform_.epoch());
      } else if (t.target != Moves::Target::self || moves_.selfAnnounced) {
        ok = copySlice(t, row, rows);
        // Of rows in place nothing was under way by which the one before could be raised.
        flush();
        pending_ = !ok ? nullptr : flag(t.peer, moves_.chunkFlag(t.from.rank, t.chunk, t.slice));
        pendingHere_ = t.peer == b_.local();
        since_ = 0;
      } else if (p_.plan.shape.gathered != sched::Gathered::none) {
        ok = copy(rowsOf(t.from, row), inGathered(b_.local(), t.from, row), moves_.rowBytes, rows,
                  [&] { return allEntered(); });
      }
      if (!ok) return false;
      platform_.progress();
    }
    flush();
    return true;
  }
  __device__ __forceinline__ bool copies() {
    for (;;) {
      const uint64_t number = moves_.copies == 0 ? 0 : platform_.claim(OwnLayout::claimCopy);
      if (number >= moves_.copies) return true;
      if (platform_.leaving()) return false;
      const Moves::Copy t = moves_.copy(static_cast<uint32_t>(number));
      if (!t.exists) continue;
      if (!awaitChunk(t.from, t.chunk)) return false;
      const uint64_t row = t.chunk * moves_.chunkRows;
      if (!copy(rowsOf(t.from, row), inGathered(b_.local(), t.from, row), moves_.rowBytes,
                moves_.rowsIn(t.from.rank, static_cast<uint32_t>(t.chunk)), [&] { return allEntered(); }))
        return false;
      platform_.progress();
    }
  }

  struct Rows {
    char* data;
    uint64_t stride;  // bytes
  };
  __device__ __forceinline__ Rows inGathered(uint32_t local, const sched::Shard& s, uint64_t row) const {
    const uint64_t stride = p_.gatheredStride * 2;
    return {p_.gathered[local] + (moves_.first(s.rank) + row) * stride, stride};
  }
  __device__ __forceinline__ Rows inBank(uint32_t local, const sched::Shard& s, uint64_t row) const {
    return {p_.memory.heaps[local] + bank_ + moves_.packed(s, row), moves_.rowBytes};
  }
  __device__ __forceinline__ Rows rowsOf(const sched::Shard& s, uint64_t row) const {
    if (isOwnRows(b_, s.node, s.local)) {
      const uint64_t stride = p_.operands.aStride * 2;
      return {static_cast<char*>(const_cast<void*>(p_.operands.a)) + row * stride, stride};
    }
    if (moves_.windowed && s.local != b_.local()) return inGathered(b_.local(), s, row);
    return inBank(b_.local(), s, row);
  }

  // By way of shared memory: buffers are filled ahead of the stores that empty them.  load(piece, buffer, barrier) returns the
  // bytes it asks for; store(piece, buffer).  open(): before the first store; false: it may not begin.
  template <class Open, class Load, class Store>
  __device__ __forceinline__ bool pieces(uint32_t count, Open&& open, Load&& load, Store&& store) {
    uint32_t loaded = 0;
    const auto awaitLoad = [&](uint32_t piece) {
      barrierWait(b_.at(L::kMoveFull + 8 * ((first_ + piece) % L::kMoveBuffers)),
                  (first_ + piece) / L::kMoveBuffers & 1);
    };
    for (uint32_t stored = 0; stored < count; ++stored) {
      for (; loaded < count && loaded - stored < kAhead; ++loaded) {
        // The piece that was in this buffer has been stored, and kMoveBuffers - kAhead after it at least.
        storesRead<L::kMoveBuffers - kAhead>();
        const uint32_t slot = (first_ + loaded) % L::kMoveBuffers;
        load(loaded, b_.at(L::kMoved + slot * kChunkBytes), b_.at(L::kMoveFull + 8 * slot));
      }
      if (stored == 0 && !open()) {
        // Nobody leaves while loads are on their way to it.
        for (uint32_t piece = 0; piece < loaded; ++piece) awaitLoad(piece);
        return false;
      }
      awaitLoad(stored);
      pace_.step();
      store(stored, b_.at(L::kMoved + (first_ + stored) % L::kMoveBuffers * kChunkBytes));
      storesCommit();
      // The chunk before is out when only newer stores are under way.
      if (pending_ != nullptr && ++since_ == kFlagAfter) {
        storesWait<kFlagAfter>();
        raise();
      }
    }
    first_ += count;
    // Few pieces follow each other here: the flag of the chunk before has waited long enough.
    flush();
    return true;
  }
  // Of each row so many bytes.
  template <class Open>
  __device__ __forceinline__ bool copy(Rows from, Rows to, uint64_t rowBytes, uint64_t rows, Open&& open) {
    if (from.data == to.data || rowBytes == 0) return true;  // a shard that lies where it belongs in `gathered`
    if (from.stride == rowBytes && to.stride == rowBytes) {
      rowBytes *= rows;
      rows = 1;
    }
    struct Cursor {
      uint64_t row = 0, at = 0;
      __device__ __forceinline__ uint32_t bytes(uint64_t rowBytes) const {
        return static_cast<uint32_t>(rowBytes - at < kChunkBytes ? rowBytes - at : kChunkBytes);
      }
      __device__ __forceinline__ void next(uint64_t rowBytes) {
        at += kChunkBytes;
        if (at < rowBytes) return;
        at = 0;
        ++row;
      }
    } in, out;
    const uint32_t perRow = static_cast<uint32_t>((rowBytes + kChunkBytes - 1) / kChunkBytes);
    return pieces(
        static_cast<uint32_t>(perRow * rows), open,
        [&](uint32_t, uint32_t buffer, uint32_t full) {
          const uint32_t bytes = in.bytes(rowBytes);
          barrierExpect(full, bytes);
          loadBytes(buffer, from.data + in.row * from.stride + in.at, bytes, full);
          in.next(rowBytes);
        },
        [&](uint32_t, uint32_t buffer) {
          storeBytes(to.data + out.row * to.stride + out.at, buffer, out.bytes(rowBytes));
          out.next(rowBytes);
        });
  }
  // A slice of a chunk of this rank's shard, to a peer, or to where this rank's tiles that span shards have all rows from.
  __device__ __forceinline__ bool copySlice(const Moves::Move& t, uint64_t row, uint32_t rows) {
    Rows from = rowsOf(t.from, row),
         to = moves_.windowed ? inGathered(t.peer, t.from, row) : inBank(t.peer, t.from, row);
    // The own bank is open: what others wrote there has been used by launches that have ended.
    const auto open = [&] { return t.peer != b_.local() ? openPeer(t.peer) : !moves_.windowed || allEntered(); };
    if (p_.boxRows != 0) return from.data == to.data || copyBoxes(t, static_cast<uint32_t>(row), rows, open);
    const uint32_t slice = static_cast<uint32_t>(t.slice);
    from.data += uint64_t{slice} * moves_.sliceCols * 2;
    to.data += uint64_t{slice} * moves_.sliceCols * 2;
    return copy(from, to, uint64_t{moves_.colsIn(slice)} * 2, rows, open);
  }
  // In boxes of 64 columns by 64 rows, or by a chunk's, of which a piece then has several; past the ends of the shard and of its
  // rows nothing is stored.
  template <class Open>
  __device__ __forceinline__ bool copyBoxes(const Moves::Move& t, uint32_t row, uint32_t rows, Open&& open) {
    const uint32_t slice = static_cast<uint32_t>(t.slice), col = slice * moves_.sliceCols;
    const uint32_t across = (moves_.colsIn(slice) + 63) / 64;
    const uint32_t boxes = across * (rows > 64 ? 2 : 1), perPiece = p_.boxesPerPiece, boxBytes = p_.boxRows * 128;
    const CUtensorMap* const to = &p_.atPeer[t.peer][platform_.epoch() & 1];
    // Calls work(x, y, offset in the buffer) for each box of a piece.
    const auto eachBox = [&](uint32_t piece, auto&& work) {
      const uint32_t first = piece * perPiece, left = boxes - first;
#pragma unroll 1
      for (uint32_t i = 0; i < perPiece && i < left; ++i) {
        const uint32_t box = first + i;
        const bool below = box >= across;
        work(col + (below ? box - across : box) * 64, below ? row + 64 : row, i * boxBytes);
      }
    };
    return pieces((boxes + perPiece - 1) / perPiece, open,
                  [&](uint32_t piece, uint32_t buffer, uint32_t full) {
                    const uint32_t left = boxes - piece * perPiece;
                    barrierExpect(full, (left < perPiece ? left : perPiece) * boxBytes);
                    eachBox(piece,
                            [&](uint32_t x, uint32_t y, uint32_t at) { loadBox(buffer + at, &p_.shard, x, y, full); });
                  },
                  [&](uint32_t piece, uint32_t buffer) {
                    eachBox(piece, [&](uint32_t x, uint32_t y, uint32_t at) { storeBox(to, buffer + at, x, y); });
                  });
  }
  // Raises the flag of the chunk that is on its way.
  __device__ __forceinline__ void flush() {
    if (pending_ == nullptr) return;
    storesComplete();
    raise();
  }
  __device__ __forceinline__ void raise() {
    uint64_t* const word = pending_;
    pending_ = nullptr;
    if (pendingHere_) return storeReleaseDevice(word, platform_.epoch());
    storeReleaseSystem(word, platform_.epoch());
    if (!platform_.arrive(OwnLayout::tilesOut, moves_.toPeers)) return;
#pragma unroll 1
    for (uint32_t l = 0; l < b_.locals(); ++l) {
      if (l != b_.local()) storeReleaseSystem(flag(l, moves_.outFlags + b_.local()), platform_.epoch());
    }
  }

  __device__ __forceinline__ uint64_t* flag(uint32_t l, uint64_t word) const {
    return reinterpret_cast<uint64_t*>(p_.memory.heaps[l] + flags_ + word * 8);
  }
  // Rows go ahead of the peer's entering where FreeBanks allows that.
  __device__ __forceinline__ bool openPeer(uint32_t l) {
    // Producer: this launch's control agent, once the peer has entered.
    if (moves_.windowed || b_.multiNode())
      return own(OwnLayout::peerOpen(l), Why{Stage::entered, static_cast<int32_t>(l), -1, 0});
    return banks_.await(b_, platform_, l);
  }
  // User memory is written once all have entered with the same plan.
  __device__ __forceinline__ bool allEntered() {
    // Producer: this launch's control agent.
    return b_.alone() || own(OwnLayout::allEntered, Why{Stage::entered, -1, -1, 0});
  }
  __device__ __forceinline__ bool own(uint64_t word, const Why& why) {
    if (!platform_.ready(protocol::own(word), platform_.epoch(), protocol::Match::equal)) flush();
    return platform_.wait(protocol::own(word), platform_.epoch(), protocol::Match::equal, why);
  }
  // Until a chunk of another rank's shard is there.
  __device__ __forceinline__ bool awaitChunk(const sched::Shard& s, uint64_t chunk) {
    if (s.local != b_.local()) {
      for (uint64_t slice = 0; slice < moves_.slices; ++slice) {
        // Producer: local rank s.local, in raise().
        if (!arrived(flags_ + moves_.chunkFlag(s.rank, chunk, slice) * 8,
                     Why{Stage::peerRows, static_cast<int32_t>(s.local), -1, chunk}))
          return false;
      }
      return true;
    }
    const uint32_t distance = moves_.distanceTo(s.node);
    // Producer: the rail peer there, in send().
    return arrived(sched::arrivalFlag(p_.memory.heapLayout, p_.memory.controlLayout, moves_.slot(distance, chunk),
                                      moves_.sender(distance), platform_.epoch()),
                   Why{Stage::railRows, -1, static_cast<int32_t>(s.node), chunk});
  }
  __device__ __forceinline__ bool arrived(uint64_t offset, const Why& why) {
    const protocol::Ref ref = protocol::heap(b_.local(), offset);
    if (!platform_.ready(ref, platform_.epoch(), protocol::Match::equal)) flush();
    if (!platform_.wait(ref, platform_.epoch(), protocol::Match::equal, why)) return false;
    fenceAsyncGlobal();
    return true;
  }

  static constexpr int kFlagAfter = 4;  // stores of the next chunk
  // Pieces that are loaded ahead; the other buffers are being stored.
  static constexpr uint32_t kAhead = L::kMoveBuffers / 2;

  const Block<C>& b_;
  const AgGemmParams& p_;
  const Moves& moves_;
  LanePlatform<C::kGeneral> platform_;
  const uint64_t bank_, flags_;
  Pace pace_;
  uint32_t first_ = 0;           // pieces before this copy
  uint64_t* pending_ = nullptr;  // flag of a chunk that is on its way
  bool pendingHere_ = false;     // to this rank itself
  int since_ = 0;                // stores since
  FreeBanks banks_;
};

}  // namespace mk::kernels
