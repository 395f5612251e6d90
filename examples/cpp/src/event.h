// What goes through the program: events in, particles out.
#pragma once

#include <cstdint>
#include <vector>

namespace ringflow {

/// Rows of float32 values, one after the other; NaN where a value is missing.
struct Table {
  std::uint32_t rows = 0;
  std::vector<float> values;
};

/// One event as the detector saw it.
struct Event {
  std::int64_t number = 0;
  Table track;
  Table calorimeter;  // clusters, or hits for a network on hits
};

/// One reconstructed particle; `track` and `calorimeter` are rows of its event, -1 for none.
struct Particle {
  std::int64_t label = 0;
  std::int64_t charge = 0;
  float px = 0, py = 0, pz = 0, energy = 0;  // GeV
  std::int64_t track = -1;
  std::int64_t calorimeter = -1;
};

using Particles = std::vector<Particle>;

}  // namespace ringflow
