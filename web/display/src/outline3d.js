// The outline of the detector in space: thin lines at its edges, and faint walls of the calorimeters.
import * as THREE from "three";

const SIDES = 48;
const STRENGTH = { tracker: 0.14, ecal: 0.7, hcal: 0.32, coil: 0.3, yoke: 0.4 };
const WALL = { ecal: 0.05, hcal: 0.03 };

/** A group per system (`tracker`, `ecal`, ...), to be shown or hidden. */
export function outlineGroups(detector, colours) {
  const groups = {};
  for (const part of detector.parts) {
    const group = (groups[part.system] ??= new THREE.Group());
    const ends = part.both_ends ? [1, -1] : [1];
    for (const sign of ends) {
      const z = [part.z_min * sign, part.z_max * sign];
      group.add(edges(part, z, colours));
      if (WALL[part.system]) group.add(wall(part, z, colours));
    }
  }
  return groups;
}

function edges(part, [near, far], colours) {
  const points = [];
  const rings = [[part.r_min, near], [part.r_max, near], [part.r_min, far], [part.r_max, far]];
  const known = new Set();
  for (const [radius, z] of rings) {
    if (known.has(`${radius} ${z}`)) continue;
    known.add(`${radius} ${z}`);
    for (let side = 0; side < SIDES; side++) points.push(...at(radius, side, z), ...at(radius, side + 1, z));
  }
  if (part.system !== "tracker" && near !== far)
    for (let side = 0; side < SIDES; side += SIDES / 12) points.push(...at(part.r_max, side, near), ...at(part.r_max, side, far));
  const geometry = new THREE.BufferGeometry().setAttribute("position", new THREE.Float32BufferAttribute(points, 3));
  const color = new THREE.Color(...colours.outline.map((value) => value / 255));
  const material = new THREE.LineBasicMaterial({ color, transparent: true, opacity: STRENGTH[part.system] ?? 0.4, depthWrite: false });
  material.color.convertSRGBToLinear();
  return new THREE.LineSegments(geometry, material);
}

function wall(part, [near, far], colours) {
  const geometry = new THREE.CylinderGeometry(part.r_max, part.r_max, Math.abs(far - near), SIDES, 1, true);
  geometry.rotateX(Math.PI / 2).translate(0, 0, (near + far) / 2);
  const color = new THREE.Color(...colours.accent.map((value) => value / 255)).convertSRGBToLinear();
  const material = new THREE.MeshBasicMaterial({ color, transparent: true, opacity: WALL[part.system], side: THREE.BackSide, depthWrite: false });
  return new THREE.Mesh(geometry, material);
}

function at(radius, side, z) {
  const angle = (2 * Math.PI * side) / SIDES;
  return [radius * Math.cos(angle), radius * Math.sin(angle), z];
}
