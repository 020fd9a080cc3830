/// The message that tells the cause of a failure.

#include <gtest/gtest.h>

#include <cstring>

#include "engine/failure/cause.h"

namespace farandole {
namespace {

TEST(CauseFrame, an_error_survives_the_way) {
  Error error{.code = Code::Timeout,
              .message = "no progress",
              .peer = 7,
              .tensor = "allreduce.x",
              .missing = {3, 7},
              .waited_s = 30.5};
  const auto frame = encode_cause(Error::wrap(error, "outer"));
  const auto got = decode_cause(frame);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->error.code, Code::Timeout);
  EXPECT_EQ(got->error.peer, 7);
  EXPECT_EQ(got->error.tensor, "allreduce.x");
  EXPECT_EQ(got->error.missing, error.missing);
  EXPECT_EQ(got->error.waited_s, 30.5);
  EXPECT_EQ(got->error.message, "outer: no progress");
}

TEST(CauseFrame, how_a_rank_was_lost_survives_the_way) {
  const Error error{
      .code = Code::PeerLost, .message = "in any words", .peer = 7, .loss = Loss::ConnectionEnded};
  const auto got = decode_cause(encode_cause(error));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->error.loss, Loss::ConnectionEnded);
}

TEST(CauseFrame, an_unknown_way_to_lose_a_rank_is_refused) {
  const auto frame = encode_cause(Error{.code = Code::PeerLost, .message = "text", .peer = 7});
  auto last = frame;
  last[3] = static_cast<std::byte>(Loss::DescriptorsClosed);
  EXPECT_TRUE(decode_cause(last));
  auto next = frame;
  next[3] = static_cast<std::byte>(static_cast<int>(Loss::DescriptorsClosed) + 1);
  EXPECT_FALSE(decode_cause(next));
}

TEST(CauseFrame, long_texts_are_cut_between_characters) {
  std::string text(4095, 'x');
  text += "\u00e9";  // two bytes, of which one would still fit
  const auto got = decode_cause(encode_cause(Error{.code = Code::Internal, .message = text}));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->error.message, std::string(4095, 'x'));
}

TEST(CauseFrame, other_bytes_are_not_taken_for_one) {
  auto frame = encode_cause(Error{.code = Code::PeerLost, .message = "text", .missing = {1, 2}});
  for (std::size_t bytes = 0; bytes < frame.size(); ++bytes) {
    EXPECT_FALSE(decode_cause(std::span(frame).first(bytes)));
  }
  for (std::size_t at = 0; at < frame.size();
       ++at) {  // whatever comes out, nothing may be read beyond
    for (const unsigned value : {0U, 1U, 0x7FU, 0xFFU}) {
      auto hostile = frame;
      hostile[at] = static_cast<std::byte>(value);
      [[maybe_unused]] const auto got = decode_cause(hostile);
    }
  }
}

}  // namespace
}  // namespace farandole
