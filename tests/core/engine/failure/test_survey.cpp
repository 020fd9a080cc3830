/// What makes an operation stuck, and who is named.

#include <gtest/gtest.h>

#include "engine/failure/survey.h"

namespace farandole {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Standing::State;

constexpr Position kHere{Position::Stream::Dispatches, 5};
constexpr TimePoint kNow{seconds(1000)};
constexpr Duration kLimit = seconds(30);

Survey survey_of(Rank self, const std::vector<Rank>& awaited) {
  Survey survey(kLimit);
  survey.begin(kHere, self, awaited);
  return survey;
}

TEST(Survey, a_rank_that_moves_elsewhere_gets_time) {
  Survey survey = survey_of(2, {1});
  EXPECT_EQ(survey.take_questions(), (std::vector<Rank>{1}));
  EXPECT_FALSE(survey.complete());
  survey.hear(1, {State::Before, seconds(2), {0}}, kNow);
  EXPECT_TRUE(survey.complete()) << "no need to ask further";
  const auto finding = survey.conclude(kNow);
  EXPECT_FALSE(finding.stuck);
  EXPECT_EQ(finding.wait, seconds(28));
}

TEST(Survey, a_rank_that_waits_for_one_that_moves_gets_time) {
  Survey survey = survey_of(2, {1});
  (void)survey.take_questions();
  survey.hear(1, {State::In, seconds(40), {0}}, kNow);
  EXPECT_FALSE(survey.complete());
  EXPECT_EQ(survey.take_questions(), (std::vector<Rank>{0}));
  survey.hear(0, {State::In, milliseconds(1), {3}}, kNow);
  ASSERT_TRUE(survey.complete());
  EXPECT_FALSE(survey.conclude(kNow).stuck);
}

TEST(Survey, who_is_awaited_and_waits_for_nobody_is_named) {
  Survey survey = survey_of(2, {0, 1});
  (void)survey.take_questions();
  survey.hear(1, {State::Past, seconds(31), {}}, kNow);
  survey.hear(0, {State::In, seconds(31), {1, 2}}, kNow);
  ASSERT_TRUE(survey.complete());
  const auto finding = survey.conclude(kNow);
  EXPECT_TRUE(finding.stuck);
  EXPECT_FALSE(finding.each_other);
  EXPECT_EQ(finding.ranks, (std::vector<Rank>{1}));
}

TEST(Survey, two_that_wait_for_each_other_are_named_and_nobody_else) {
  Survey survey = survey_of(0, {1, 2});
  (void)survey.take_questions();
  survey.hear(1, {State::In, seconds(31), {2}}, kNow);
  survey.hear(2, {State::In, seconds(31), {1}}, kNow);
  const auto finding = survey.conclude(kNow);
  EXPECT_TRUE(finding.stuck && finding.each_other);
  EXPECT_EQ(finding.ranks, (std::vector<Rank>{1, 2}));
}

TEST(Survey, a_rank_is_never_said_to_wait_for_itself) {
  Survey survey = survey_of(0, {1});
  (void)survey.take_questions();
  survey.hear(1, {State::In, seconds(31), {0, 1}}, kNow);
  const auto finding = survey.conclude(kNow);
  EXPECT_TRUE(finding.stuck && finding.each_other);
  EXPECT_EQ(finding.ranks, (std::vector<Rank>{0, 1}));
}

TEST(Survey, who_has_passed_cannot_be_busy_for_ever) {
  Survey survey = survey_of(0, {1});
  (void)survey.take_questions();
  survey.hear(1, {State::Past, seconds(0), {2}}, kNow);
  EXPECT_FALSE(survey.conclude(kNow).stuck);
  survey.begin(kHere, 0, {1});
  (void)survey.take_questions();
  survey.hear(1, {State::Past, seconds(0), {}}, kNow + kLimit);
  EXPECT_TRUE(survey.conclude(kNow + kLimit).stuck);
}

TEST(Survey, who_does_not_answer_is_named) {
  Survey survey = survey_of(0, {1, 2});
  (void)survey.take_questions();
  survey.hear(2, {State::In, seconds(31), {0}}, kNow);
  EXPECT_FALSE(survey.complete());
  const auto finding = survey.conclude(kNow);
  EXPECT_TRUE(finding.stuck && finding.silent);
  EXPECT_EQ(finding.ranks, (std::vector<Rank>{1}));
}

TEST(Survey, many_are_asked_a_few_at_a_time) {
  std::vector<Rank> awaited;
  for (Rank rank = 1; rank <= 100; ++rank) awaited.push_back(rank);
  Survey survey = survey_of(0, awaited);
  EXPECT_EQ(survey.take_questions().size(), Survey::kAtATime);
  EXPECT_TRUE(survey.take_questions().empty());
  survey.hear(1, {State::In, seconds(31), {0}}, kNow);
  EXPECT_EQ(survey.take_questions(), (std::vector<Rank>{65}));
}

TEST(SurveyFrame, questions_and_answers_survive_the_way) {
  const auto question = decode_survey(encode_survey({.from = 3, .to = 9, .position = kHere}));
  ASSERT_TRUE(question && !question->standing);
  EXPECT_EQ(question->from, 3);
  EXPECT_EQ(question->to, 9);
  EXPECT_EQ(question->position, kHere);
  const auto frame = encode_survey(
      {.from = 9, .to = 3, .position = kHere, .standing = Standing{State::In, seconds(7), {4, 5}}});
  const auto answer = decode_survey(frame);
  ASSERT_TRUE(answer && answer->standing);
  EXPECT_EQ(answer->standing->state, State::In);
  EXPECT_EQ(answer->standing->quiet, seconds(7));
  EXPECT_EQ(answer->standing->waits_for, (std::vector<Rank>{4, 5}));
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    EXPECT_FALSE(decode_survey(std::span(frame).first(cut))) << cut;
  }
}

}  // namespace
}  // namespace farandole
