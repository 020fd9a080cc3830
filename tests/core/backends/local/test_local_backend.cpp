// A world of one.
#include "backends/local/local.h"

#include <gtest/gtest.h>

#include <random>

#include "association_reference.h"

namespace farandole {
namespace {

using reference::Bytes;

LocalBackend alone() { return LocalBackend({{4}, 0, {{0}}}); }

void finish(Operation& operation) {
  for (int steps = 0; steps < 10000; ++steps) {
    auto step = operation.step();
    ASSERT_TRUE(step) << step.error().what();
    ASSERT_NE(*step, Step::Blocked);  // there is nobody to wait for
    if (*step == Step::Done) return;
  }
  FAIL() << "not done after 10000 steps";
}

TEST(LocalBackend, ScalesAsAReductionOverMoreMembersRounds) {
  LocalBackend backend = alone();
  std::mt19937 random(1);
  const std::vector<std::size_t> counts{5, 0, 1, 300000, 17};
  for (const DType dtype : {DType::Float32, DType::Float16, DType::Int32, DType::Bool}) {
    for (const auto& [prescale, postscale] :
         {std::pair(1.0, 1.0), {0.5, 1.0}, {1.0, 0.3}, {0.7, 3.0}}) {
      for (const bool in_place : {false, true}) {
        const Reduction reduction{dtype, ReduceOp::Max, prescale, postscale};
        std::vector<Bytes> ins;
        std::vector<Bytes> outs;
        std::vector<Bytes> expected;
        std::vector<Piece> pieces;
        for (const std::size_t count : counts) {
          ins.push_back(reference::mixed(dtype, count, random));
          outs.emplace_back(ins.back().size());
          expected.push_back(reference::associate({{0}}, {ins.back()}, reduction));
        }
        for (std::size_t i = 0; i < counts.size(); ++i) {
          pieces.push_back({ins[i].data(), (in_place ? ins : outs)[i].data(), counts[i]});
        }
        finish(*backend.start(Allreduce{pieces, reduction}));
        EXPECT_TRUE((in_place ? ins : outs) == expected)
            << name_of(dtype) << " " << prescale << " " << postscale;
      }
    }
  }
}

TEST(LocalBackend, CopiesGathersAndBroadcasts) {
  LocalBackend backend = alone();
  const Bytes in{std::byte{1}, std::byte{2}, std::byte{3}};
  Bytes out(3);
  finish(*backend.start(Broadcast{in, out, 0}));
  EXPECT_EQ(out, in);

  Bytes gathered(3);
  GatherPlan plan;
  plan.in = {std::span(in).first(1), std::span(in).subspan(1)};
  plan.out = {{std::span(gathered).first(2), std::span(gathered).subspan(2)}};
  finish(*backend.start(std::move(plan)));
  EXPECT_EQ(gathered, in);

  finish(*backend.start(Barrier{}));
}

TEST(LocalBackend, HasNobodyToSendTo) {
  LocalBackend backend = alone();
  EXPECT_FALSE(backend.send(0, {})->step());
  EXPECT_FALSE(backend.recv(0, {})->step());
  EXPECT_EQ(backend.path(Kind::Allreduce, 100), "local");
}

}  // namespace
}  // namespace farandole
