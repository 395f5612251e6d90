#include "model.h"

#include <cstdlib>

#include "json.h"

namespace ringflow {
namespace {

constexpr const char* kFormat = "1";

ort::Session openSession(const OrtEnv* env, const std::string& path) {
  const auto options = ort::make<ort::SessionOptions>(ort::api().CreateSessionOptions);
  // Threads take whole events; one operation is not worth sharing.
  ort::check(ort::api().SetIntraOpNumThreads(options.get(), 1));
  ort::check(ort::api().SetSessionLogSeverityLevel(options.get(), ORT_LOGGING_LEVEL_FATAL));
  return ort::make<ort::Session>(ort::api().CreateSession, env, path.c_str(), options.get());
}

Input readInput(const std::string& name, const Json& columns) {
  Input input{name, {}};
  for (const Json& column : columns.items) {
    input.columns.push_back({column.at("name").text, column.at("required").text == "true"});
  }
  return input;
}

}  // namespace

Model::Model(const std::string& path) {
  try {
    // Unless the caller has said otherwise: it would look up a host of its makers and keep a database under ~/.cache.
    setenv("ORT_DISABLE_TELEMETRY", "1", 0);
    env_ = ort::make<ort::Env>(ort::api().CreateEnv, ORT_LOGGING_LEVEL_FATAL, "ringflow");
    session_ = openSession(env_.get(), path);
    readDescription();
    requireInputs();
  } catch (const Error& error) {
    throw Error(path + " cannot be used as a model: " + error.what());
  }
}

std::array<ort::Value, 5> Model::run(const OrtValue* track, const OrtValue* calorimeter) const {
  const char* const input_names[] = {inputs_[0].name.c_str(), inputs_[1].name.c_str()};
  const OrtValue* const inputs[] = {track, calorimeter};
  std::array<const char*, 5> output_names{};
  for (std::size_t k = 0; k < outputs_.size(); ++k) output_names[k] = outputs_[k].c_str();
  std::array<OrtValue*, 5> made{};
  OrtStatus* status = ort::api().Run(session_.get(), nullptr, input_names, inputs, 2, output_names.data(),
                                     output_names.size(), made.data());
  std::array<ort::Value, 5> owned;
  for (std::size_t k = 0; k < made.size(); ++k) owned[k].reset(made[k]);
  ort::check(status);
  return owned;
}

void Model::readDescription() {
  const auto metadata = ort::make<ort::Metadata>(ort::api().SessionGetModelMetadata, session_.get());
  const std::string format = property(metadata.get(), "ringflow_format");
  if (format.empty()) throw Error("it was not written by `ringflow export`");
  if (format != kFormat) throw Error("it is of format " + format + ", this program reads " + kFormat);
  const Json inputs = parseJson(property(metadata.get(), "inputs"));
  if (inputs.members.size() != 2 || inputs.members[0].first != "track") {
    throw Error("its inputs are not tracks and one kind of calorimeter objects");
  }
  for (std::size_t k = 0; k < 2; ++k) inputs_[k] = readInput(inputs.members[k].first, inputs.members[k].second);
  for (const Json& name : parseJson(property(metadata.get(), "class_names")).items) class_names_.push_back(name.text);
  detector_ = property(metadata.get(), "detector");
  outputs_ = {"candidate_label", "candidate_charge", "candidate_momentum", "candidate_track",
              "candidate_" + calorimeter().name};
}

/// The description and the graph must agree, or values would end up in the wrong place.
void Model::requireInputs() const {
  for (std::size_t k = 0; k < inputs_.size(); ++k) {
    const auto type = ort::make<ort::TypeInfo>(ort::api().SessionGetInputTypeInfo, session_.get(), k);
    const OrtTensorTypeAndShapeInfo* shape = nullptr;  // belongs to `type`
    ort::check(ort::api().CastTypeInfoToTensorInfo(type.get(), &shape));
    std::size_t dimensions = 0;
    if (shape != nullptr) ort::check(ort::api().GetDimensionsCount(shape, &dimensions));
    if (dimensions != 2) throw Error("its input " + inputs_[k].name + " is no table");
    std::int64_t sizes[2] = {0, 0};
    ort::check(ort::api().GetDimensions(shape, sizes, 2));
    if (sizes[1] != static_cast<std::int64_t>(inputs_[k].columns.size())) {
      throw Error("its input " + inputs_[k].name + " takes " + std::to_string(sizes[1]) + " columns, but it names " +
                  std::to_string(inputs_[k].columns.size()));
    }
  }
}

std::string Model::property(OrtModelMetadata* metadata, const char* name) const {
  OrtAllocator* allocator = nullptr;  // the default one, which nobody owns
  ort::check(ort::api().GetAllocatorWithDefaultOptions(&allocator));
  char* value = nullptr;
  ort::check(ort::api().ModelMetadataLookupCustomMetadataMap(metadata, allocator, name, &value));
  if (value == nullptr) return "";
  const std::string copy = value;
  ort::check(ort::api().AllocatorFree(allocator, value));
  return copy;
}

}  // namespace ringflow
