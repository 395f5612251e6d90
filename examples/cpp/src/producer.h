// In the shape of a CMSSW stream producer: the model is opened once per job, a producer lives in every stream (thread).
#pragma once

#include <memory>
#include <string>

#include "event.h"
#include "model.h"

namespace ringflow {

class ParticleFlowProducer {
public:
  /// Once per job. What it returns is shared by all producers and outlives them.
  static std::unique_ptr<const Model> initializeGlobalCache(const std::string& model_path);

  /// Once per stream.
  explicit ParticleFlowProducer(const Model& model);

  /// Once per event. Throws Error if the event does not fit the model.
  Particles produce(Event& event) const;

private:
  ort::Value tensor(const Event& event, const Input& input, Table& table) const;

  const Model& model_;
  ort::MemoryInfo memory_;
};

}  // namespace ringflow
