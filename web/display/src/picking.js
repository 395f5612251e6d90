// Which candidate is meant by a click.

const NEAR_LINE = 9; // pixels
const NEAR_HIT = 7;

/** The candidate whose line passes closest to a point of the screen, else the one that has the hit there, else null. */
export function nearestLine(scene, reconstruction, project, [px, py], lines = reconstruction.candidates.line) {
  let best = null, least = NEAR_LINE;
  lines.forEach((line, candidate) => {
    let before = null;
    for (let i = 0; i + 2 < line.length; i += 3) {
      const point = project(line[i], line[i + 1], line[i + 2]);
      if (point) {
        const distance = before ? toSegment(px, py, before, point) : Math.hypot(px - point[0], py - point[1]);
        if (distance < least) [best, least] = [candidate, distance];
      }
      before = point;
    }
  });
  return best ?? nearestHit(scene, reconstruction, project, px, py);
}

function nearestHit({ hits }, reconstruction, project, px, py) {
  let best = null, least = NEAR_HIT;
  for (let i = 0; i < hits.x.length; i++) {
    if (reconstruction.hits[i] < 0) continue;
    const point = project(hits.x[i], hits.y[i], hits.z[i]);
    const distance = point ? Math.hypot(px - point[0], py - point[1]) : Infinity;
    if (distance < least) [best, least] = [reconstruction.hits[i], distance];
  }
  return best;
}

function toSegment(px, py, [ax, ay], [bx, by]) {
  const dx = bx - ax, dy = by - ay, length = dx * dx + dy * dy;
  const along = length ? Math.min(Math.max(((px - ax) * dx + (py - ay) * dy) / length, 0), 1) : 0;
  return Math.hypot(px - ax - along * dx, py - ay - along * dy);
}
