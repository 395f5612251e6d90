// Where scenes come from: the server that sent the page, or the page itself when it was written as one file.

/** {events, scene(index), ranking(), phoenix(index), null if there is none}: the same for both. */
export function openData() {
  const embedded = document.getElementById("events");
  return embedded ? inThePage(JSON.parse(embedded.textContent)) : fromServer();
}

function fromServer() {
  return {
    events: () => json("events.json"),
    scene: (index) => json(`scene/${index}.json`),
    ranking: () => json("ranking.json"),
    phoenix: (index) => `phoenix/${index}.json`,
  };
}

async function json(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error((await answer.text()).trim() || `${path}: ${answer.status}`);
  return answer.json();
}

function inThePage(events) {
  const scenes = new Map();
  for (const node of document.querySelectorAll("script[data-scene]")) scenes.set(Number(node.dataset.scene), node);
  return {
    events: async () => events,
    scene: async (index) => unpack(scenes.get(index).textContent),
    ranking: async () => events.ranking,
    phoenix: (index) => (events.phoenix ? `phoenix/${index}.json` : null),
  };
}

/** JSON that was compressed with gzip and written in base64. */
async function unpack(text) {
  const packed = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

const OUTER = new Set(["yoke", "coil"]);
const MOST_HITS = 0.995; // share of the hits that a picture shows

/** Radius and half length (mm) that hold the inner calorimeter and nearly all hits; with the yoke, `whole`, everything. */
function extentOf({ detector, hits, clusters }) {
  const dots = hits.x.length ? hits : clusters;
  const quantile = (values) => Float64Array.from(values).sort()[Math.floor(MOST_HITS * values.length)] ?? 0;
  const parts = (systems) => detector.parts.filter(({ system }) => systems(system));
  const most = (list, name) => Math.max(...list.map((part) => part[name]), 100);
  const inner = parts((system) => system === "tracker" || system === "ecal");
  const calorimeters = parts((system) => !OUTER.has(system));
  const used = [quantile(dots.x.map((x, i) => Math.hypot(x, dots.y[i]))), quantile(dots.z.map(Math.abs))];
  const within = (name, reach) => Math.min(Math.max(most(inner, name), reach * 1.05), Math.max(most(calorimeters, name), 100)) * 1.03;
  return {
    radius: within("r_max", used[0]),
    length: within("z_max", used[1]),
    whole: { radius: most(detector.parts, "r_max") * 1.03, length: most(detector.parts, "z_max") * 1.03 },
  };
}

/** A scene as it arrives, with what is looked up often at hand: the truth among its reconstructions, and its size. */
export function prepared(scene) {
  scene.extent = extentOf(scene);
  scene.truth = scene.reconstructions.find((one) => one.name === "target") ?? null;
  return scene;
}
