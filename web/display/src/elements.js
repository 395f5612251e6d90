// Elements as the network counts them: tracks of the event first, then its clusters, or its hits if it takes those.

export const lastPoint = (line) => line.slice(-3);

/** [kind, number within the kind] of an element. */
export function resolve(scene, element) {
  const tracks = scene.tracks.lines.length;
  return element < tracks ? ["track", element] : [scene.calorimeter ?? "cluster", element - tracks];
}

export const elementName = (scene, element) => resolve(scene, element).join(" ");

/** Where an element is: a track at the calorimeter; null if there is none. */
export function elementPlace(scene, element) {
  const [kind, i] = resolve(scene, element);
  if (kind === "track") return lastPoint(scene.tracks.lines[i]);
  const { x, y, z } = kind === "hit" ? scene.hits : scene.clusters;
  return i < x.length ? [x[i], y[i], z[i]] : null;
}

/** [eta, phi] of an element, of a track as it begins, which is how candidates are shown; null if there is none. */
export function elementDirection(scene, element) {
  const [kind, i] = resolve(scene, element);
  const part = kind === "track" ? scene.tracks : scene.clusters;
  if (kind !== "hit") return part.eta[i] === undefined ? null : [part.eta[i], part.phi[i]];
  const place = elementPlace(scene, element);
  return place && [Math.asinh(place[2] / Math.max(Math.hypot(place[0], place[1]), 1e-9)), Math.atan2(place[1], place[0])];
}

/** Elements that are those of highlighted candidates, as the network counts them. */
export function ownElements(scene, painted) {
  const tracks = scene.tracks.lines.length;
  const own = new Set(painted.litTracks);
  if (scene.calorimeter !== "hit") painted.litClusters.forEach((cluster) => own.add(tracks + cluster));
  else scene.hits.cluster.forEach((cluster, hit) => painted.litClusters.has(cluster) && own.add(tracks + hit));
  return own;
}
