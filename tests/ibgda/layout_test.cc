// The entries as the library writes them against the layout that rdma-core documents and writes itself.
#include <endian.h>

#include <cstring>

#include "protocol/mlx5_queue.h"
#include "support/catch_compat.h"

#include <infiniband/mlx5dv.h>

using mk::protocol::Mlx5Entry;
using mk::protocol::Mlx5Queue;

namespace {

struct Block {
  mlx5_wqe_ctrl_seg control;
  mlx5_wqe_raddr_seg remote;
  mlx5_wqe_data_seg data;
};
static_assert(sizeof(Block) == Mlx5Entry::kWords * 8 && Mlx5Queue::kBlockBytes == MLX5_SEND_WQE_BB);
static_assert(uint32_t{Mlx5Entry::write} == uint32_t{MLX5_OPCODE_RDMA_WRITE});
static_assert(uint32_t{Mlx5Entry::writeImmediate} == uint32_t{MLX5_OPCODE_RDMA_WRITE_IMM});
static_assert(Mlx5Entry::kUpdateCompletions == MLX5_WQE_CTRL_CQ_UPDATE && Mlx5Entry::kInline == MLX5_INLINE_SEG);

}  // namespace

TEST_CASE("an entry is what rdma-core would have written") {
  for (uint64_t i = 0; i < 200; ++i) {
    const uint64_t index = i * 0x2f3, address = i * 0x123456789abcdu, source = ~address * 3;
    const uint32_t number = static_cast<uint32_t>(i * 0x10203) & 0xffffff,
                   key = 0x89abcdefu * static_cast<uint32_t>(i + 1), immediate = ~key,
                   bytes = static_cast<uint32_t>(i * 0x654321) & 0x3fffffff;
    Mlx5Entry mine;
    mine.control(index, Mlx5Entry::writeImmediate, number, 3, Mlx5Entry::kUpdateCompletions, immediate);
    mine.remote(address, key);
    mine.data(source, ~key, bytes);
    Block theirs = {};
    mlx5dv_set_ctrl_seg(&theirs.control, static_cast<uint16_t>(index), MLX5_OPCODE_RDMA_WRITE_IMM, 0, number,
                        MLX5_WQE_CTRL_CQ_UPDATE, 3, 0, htobe32(immediate));
    theirs.remote.raddr = htobe64(address);
    theirs.remote.rkey = htobe32(key);
    mlx5dv_set_data_seg(&theirs.data, bytes, ~key, source);
    CHECK(std::memcmp(mine.words, &theirs, sizeof(theirs)) == 0);
    CHECK(std::memcmp(&mine.words[0], &theirs.control, 8) == 0);

    mine.inlineWord(source);
    struct {
      __be32 count;
      uint8_t value[8], padding[4];
    } inlined = {htobe32(MLX5_INLINE_SEG | 8), {}, {}};
    std::memcpy(inlined.value, &source, 8);
    CHECK(std::memcmp(&mine.words[4], &inlined, 16) == 0);
  }
}
