// A table that several stores have saved in parts, for as many stores, or more,
// or fewer.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/tfctr_ops/cc/check.h"
#include "tests/tfctr_ops/cc/temporary_directory.h"
#include "tests/tfctr_ops/cc/test_store.h"
#include "tfctr_ops/cc/store/embedding_store.h"
#include "tfctr_ops/cc/store/hash.h"

namespace tfctr {
namespace {

using testing::Keys;
using testing::SmallOptions;
using testing::Table;
using testing::TemporaryDirectory;
using testing::TestStore;
using AdmissionKind = AdmissionOptions::Kind;

constexpr int64_t kIds = 300;
const std::vector<int32_t> kFeatures = {0, 1, 2};

// Trains the keys of one owner, those of ids below 2, as all do, more often.
void TrainShare(const TestStore& store, int32_t owner, int32_t num_owners) {
  for (int64_t step = 0; step < 3; ++step) {
    Keys keys({}, {});
    for (const int32_t feature : kFeatures) {
      for (int64_t id = 0; id < kIds; ++id) {
        const auto f = static_cast<uint32_t>(feature);
        if (OwnerOf(f, id, num_owners) != owner || (step > 0 && id > 1)) {
          continue;
        }
        keys.ids.push_back(id);
        keys.features.push_back(feature);
      }
    }
    std::vector<float> gradients;
    for (size_t i = 0; i < keys.ids.size(); ++i) {
      gradients.push_back(static_cast<float>(keys.ids[i]));
      gradients.push_back(static_cast<float>(keys.features[i] + 1));
    }
    store.Train(keys, gradients, 0.5f);
  }
}

std::vector<std::string> SaveParts(const std::string& directory,
                                   const StoreOptions& options, int32_t n) {
  std::vector<std::string> paths;
  for (int32_t owner = 0; owner < n; ++owner) {
    const TestStore store(options);
    TrainShare(store, owner, n);
    paths.push_back(directory + "/" + std::to_string(owner));
    store.Save(paths.back());
  }
  return paths;
}

RestoreRequest Request(const std::vector<std::string>& paths, int32_t owner,
                       int32_t num_owners) {
  RestoreRequest request;
  request.directories = paths;
  request.features = kFeatures;
  request.owner = owner;
  request.num_owners = num_owners;
  return request;
}

TEST(PartsOfAnyNumberBecomeSharesOfAnyOther) {
  const StoreOptions options = SmallOptions(2, SparseOptimizer::Kind::kAdagrad);
  const TestStore whole(options);
  TrainShare(whole, 0, 1);
  const Table expected = whole.Export();
  CHECK_EQ(expected.size(), size_t{3 * kIds});
  for (const int32_t saved : {1, 2, 3, 4}) {
    const TemporaryDirectory directory;
    const auto paths = SaveParts(directory.path(), options, saved);
    for (const int32_t restored : {1, 2, 3, 4}) {
      Table together;
      for (int32_t owner = 0; owner < restored; ++owner) {
        const TestStore store(options);
        CHECK_OK(
            store->Restore(Request(paths, owner, restored), store.executor()));
        CHECK_EQ(store->step(), 3);
        for (const auto& [key, row] : store.Export()) {
          CHECK_EQ(
              OwnerOf(static_cast<uint32_t>(key.first), key.second, restored),
              owner);
          CHECK(together.emplace(key, row).second);
        }
      }
      CHECK_EQ(together, expected);
    }
  }
}

TEST(CountsOfAdmissionGoWithTheirKeys) {
  for (const AdmissionKind kind :
       {AdmissionKind::kCount, AdmissionKind::kBloom}) {
    StoreOptions options = SmallOptions(2, SparseOptimizer::Kind::kAdagrad);
    options.admission.kind = kind;
    options.admission.min_count = 3;
    options.admission.expected_keys = 10000;
    const TemporaryDirectory directory;
    const auto paths = SaveParts(directory.path(), options, 3);
    int64_t tracked = 0;
    for (int32_t owner = 0; owner < 2; ++owner) {
      const TestStore store(options);
      CHECK_OK(store->Restore(Request(paths, owner, 2), store.executor()));
      tracked += store->Stats(store.executor()).tracked_keys;
      // Ids 0 and 1 have come three times, all others once.
      Keys keys({}, {});
      for (int64_t id = 0; id < kIds; ++id) {
        if (OwnerOf(2, id, 2) != owner) continue;
        keys.ids.push_back(id);
        keys.features.push_back(2);
      }
      const auto admitted = [&] {
        std::vector<int64_t> ids;
        const auto rows = store.Lookup(keys).rows;
        for (size_t i = 0; i < keys.ids.size(); ++i) {
          if (rows[2 * i] != 0.0f) ids.push_back(keys.ids[i]);
        }
        return ids;
      };
      for (const int64_t id : admitted()) CHECK(id < 2);  // The second time.
      CHECK_EQ(admitted(), keys.ids);                     // The third.
    }
    if (kind == AdmissionKind::kCount) CHECK_EQ(tracked, 3 * (kIds - 2));
  }
}

TEST(PartsOfTwoStepsAreRefused) {
  const StoreOptions options = SmallOptions(2, SparseOptimizer::Kind::kAdagrad);
  const TemporaryDirectory directory;
  auto paths = SaveParts(directory.path(), options, 2);
  const TestStore late(options);
  late.Write(Keys({7}, {0}), {1, 2});
  paths.push_back(directory.path() + "/late");
  late.Save(paths.back());
  const Status status = late->Restore(Request(paths, 0, 1), late.executor());
  CHECK_EQ(status.code(), StatusCode::kInvalidArgument);
  CHECK_EQ(status.message(),
           "The parts of a table must be of one step. "
           "Received: '" +
               paths[0] + "' of step 3, '" + paths[2] +
               "' of step 0. Restore another checkpoint.");
  CHECK_EQ(late.Export().size(), size_t{1});  // As it was.
}

TEST(APartThatIsNotThereIsNamed) {
  const StoreOptions options = SmallOptions(2, SparseOptimizer::Kind::kAdagrad);
  const TemporaryDirectory directory;
  auto paths = SaveParts(directory.path(), options, 1);
  paths.push_back(directory.path() + "/none");
  const TestStore store(options);
  const Status status = store->Restore(Request(paths, 0, 1), store.executor());
  CHECK_EQ(status.code(), StatusCode::kUnavailable);
  CHECK_CONTAINS(status.message(), paths[1]);
}

TEST(AnOwnerThatIsNoneIsRefused) {
  const TestStore store(SmallOptions(2, SparseOptimizer::Kind::kSgd));
  for (const RestoreRequest& request :
       {Request({}, 0, 1), Request({"a"}, 2, 2), Request({"a"}, -1, 2)}) {
    CHECK_CONTAINS(store->Restore(request, store.executor()).message(),
                   "A restore takes one directory or more, and an owner below "
                   "`num_owners`. Received: ");
  }
}

}  // namespace
}  // namespace tfctr
