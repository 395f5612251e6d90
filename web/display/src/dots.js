// Many dots in one draw call: hits as small shaded balls, clusters as rings. 100,000 of them are one buffer each of places,
// sizes and colours; only colours are written again when something is selected.
import * as THREE from "three";

const VERTEX = `
  attribute float size;
  attribute vec4 tint;
  uniform float pixelsPerUnit;
  uniform float least;
  varying vec4 colour;
  void main() {
    vec4 place = modelViewMatrix * vec4(position, 1.0);
    gl_Position = projectionMatrix * place;
    gl_PointSize = max(size * tint.a * pixelsPerUnit / -place.z, least);
    if (tint.a == 0.0) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    colour = tint;
  }`;
const FRAGMENT = `
  uniform float ring;
  varying vec4 colour;
  void main() {
    vec2 offset = 2.0 * gl_PointCoord - 1.0;
    float radius = dot(offset, offset);
    if (radius > 1.0 || radius < ring) discard;
    float light = 1.0 - 0.35 * radius * (1.0 - step(0.01, ring));
    gl_FragColor = vec4(colour.rgb * light, 1.0);
  }`;

const SMALLEST_PIXELS = 1.6;
const DIMMED_SIZE = 0.6;
const COARSE_DOTS = 15000; // drawn while turning on a slow machine

/** A cloud of dots at places (mm) with sizes (mm); `ring` leaves out the inside. */
export class Dots {
  constructor({ x, y, z }, sizes, ring = false) {
    this.order = shuffled(x.length);
    const places = new Float32Array(3 * x.length);
    this.order.forEach((i, place) => places.set([x[i], y[i], z[i]], 3 * place));
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute("position", new THREE.BufferAttribute(places, 3));
    geometry.setAttribute("size", new THREE.BufferAttribute(Float32Array.from(this.order, (i) => sizes[i]), 1));
    this.tint = new THREE.BufferAttribute(new Uint8Array(4 * x.length), 4, true);
    geometry.setAttribute("tint", this.tint);
    geometry.boundingSphere = new THREE.Sphere(new THREE.Vector3(), 1e5);
    const uniforms = { pixelsPerUnit: { value: 1 }, least: { value: SMALLEST_PIXELS }, ring: { value: ring ? 0.55 : 0 } };
    this.material = new THREE.ShaderMaterial({ vertexShader: VERTEX, fragmentShader: FRAGMENT, uniforms });
    this.object = new THREE.Points(geometry, this.material);
  }

  /** One colour per dot; null hides it. `lit(i)` says whether it keeps its size. */
  paint(colours, anyChosen, lit) {
    const { array } = this.tint;
    this.order.forEach((i, place) => {
      const colour = colours[i];
      if (!colour) return void (array[4 * place + 3] = 0);
      array[4 * place] = colour[0];
      array[4 * place + 1] = colour[1];
      array[4 * place + 2] = colour[2];
      array[4 * place + 3] = anyChosen && !lit(i) ? 255 * DIMMED_SIZE : 255;
    });
    this.tint.needsUpdate = true;
  }

  /** Pixels that a millimetre has at a distance of a millimetre. */
  setScale(pixelsPerUnit, pixelRatio) {
    this.material.uniforms.pixelsPerUnit.value = pixelsPerUnit * pixelRatio;
    this.material.uniforms.least.value = SMALLEST_PIXELS * pixelRatio;
  }

  /** Draw a fair sample only. */
  setCoarse(coarse) {
    this.object.geometry.setDrawRange(0, coarse ? COARSE_DOTS : Infinity);
  }

  dispose() {
    this.object.geometry.dispose();
    this.material.dispose();
  }
}

/** 0 to count - 1 in an order that looks random and is always the same, so that the first ones are a fair sample. */
function shuffled(count) {
  const order = Uint32Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1, seed = 1; i > 0; i--) {
    seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0;
    const j = seed % (i + 1);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}
