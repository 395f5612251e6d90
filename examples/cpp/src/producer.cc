#include "producer.h"

#include <cmath>

namespace ringflow {
namespace {

template <class Number>
const Number* data(const ort::Value& value) {
  void* first = nullptr;
  ort::check(ort::api().GetTensorMutableData(value.get(), &first));
  return static_cast<const Number*>(first);
}

std::size_t numElements(const ort::Value& value) {
  const auto shape = ort::make<ort::ShapeInfo>(ort::api().GetTensorTypeAndShape, value.get());
  std::size_t count = 0;
  ort::check(ort::api().GetTensorShapeElementCount(shape.get(), &count));
  return count;
}

/// Nothing can be made of an element without these; the rest of the event would suffer too.
void requireFinite(const Event& event, const Input& input, const Table& table) {
  const std::size_t columns = input.columns.size();
  for (std::size_t place = 0; place < table.values.size(); ++place) {
    const Column& column = input.columns[place % columns];
    if (column.required && !std::isfinite(table.values[place])) {
      throw Error("event " + std::to_string(event.number) + ": " + input.name + " " + std::to_string(place / columns) +
                  " has " + column.name + " " + std::to_string(table.values[place]) + "; it must be a finite number");
    }
  }
}

}  // namespace

std::unique_ptr<const Model> ParticleFlowProducer::initializeGlobalCache(const std::string& model_path) {
  return std::make_unique<const Model>(model_path);
}

ParticleFlowProducer::ParticleFlowProducer(const Model& model)
    : model_(model),
      memory_(ort::make<ort::MemoryInfo>(ort::api().CreateCpuMemoryInfo, OrtDeviceAllocator, OrtMemTypeDefault)) {}

Particles ParticleFlowProducer::produce(Event& event) const {
  const ort::Value track = tensor(event, model_.track(), event.track);
  const ort::Value calorimeter = tensor(event, model_.calorimeter(), event.calorimeter);
  const auto [label, charge, momentum, on_track, on_calorimeter] = model_.run(track.get(), calorimeter.get());
  Particles particles(numElements(label));
  for (std::size_t k = 0; k < particles.size(); ++k) {
    const float* p = data<float>(momentum) + 4 * k;
    particles[k] = {data<std::int64_t>(label)[k], data<std::int64_t>(charge)[k],   p[0], p[1], p[2], p[3],
                    data<std::int64_t>(on_track)[k], data<std::int64_t>(on_calorimeter)[k]};
  }
  return particles;
}

/// A view of a table, which must live as long; nothing is copied.
ort::Value ParticleFlowProducer::tensor(const Event& event, const Input& input, Table& table) const {
  if (table.values.size() != table.rows * input.columns.size()) {
    throw Error("event " + std::to_string(event.number) + ": " + std::to_string(table.rows) + " rows of " + input.name +
                " with " + std::to_string(table.values.size()) + " values; the model takes " +
                std::to_string(input.columns.size()) + " columns");
  }
  requireFinite(event, input, table);
  const std::int64_t shape[] = {table.rows, static_cast<std::int64_t>(input.columns.size())};
  static float nothing = 0;  // a tensor of no rows still wants an address
  float* values = table.values.empty() ? &nothing : table.values.data();
  return ort::make<ort::Value>(ort::api().CreateTensorWithDataAsOrtValue, memory_.get(), static_cast<void*>(values),
                               table.values.size() * sizeof(float), shape, std::size_t{2},
                               ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
}

}  // namespace ringflow
