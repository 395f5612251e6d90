// Colours that people with any colour vision can tell apart: the eight of Okabe and Ito, and for quantities viridis (energy in
// the calorimeter) and reds (momentum), both of which go from dark to bright.

const CLASS_COLOURS = {
  light: { charged_hadron: "#0072B2", neutral_hadron: "#009E73", photon: "#E69F00", electron: "#CC79A7", muon: "#D55E00" },
  dark: { charged_hadron: "#56B4E9", neutral_hadron: "#2BC795", photon: "#F0C042", electron: "#E59BC6", muon: "#F47B3A" },
};
const FORWARD = { forward_hadronic: "#7C6A9C", forward_electromagnetic: "#B59E6A" };
const SUBSYSTEMS = {
  ecal_barrel: "#E69F00", ecal_endcap: "#F0C97A", hcal_barrel: "#0072B2", hcal_endcap: "#56B4E9",
  yoke_barrel: "#CC79A7", yoke_endcap: "#E3B5CE",
};
const VIRIDIS = ["#440154", "#482878", "#3E4989", "#31688E", "#26828E", "#1F9E89", "#35B779", "#6DCD59", "#B4DE2C", "#FDE725"];
const REDS = ["#67000D", "#8F0A12", "#B51318", "#D32A21", "#EA4B33", "#F6714E", "#FB9470", "#FDB597", "#FED5C0", "#FFEEE6"];
const HUES = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B3A22B"];

/** [red, green, blue] from 0 to 255 of a colour written as #rrggbb. */
export function rgb(hex) {
  const value = parseInt(hex.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

export const css = ([r, g, b], alpha = 1) => `rgb(${Math.round(r)} ${Math.round(g)} ${Math.round(b)} / ${alpha})`;

export const mix = (a, b, share) => a.map((value, i) => value + (b[i] - value) * share);

/** The palette of a theme: what every kind of thing is drawn in. */
export function palette(theme) {
  const style = getComputedStyle(document.documentElement);
  const variable = (name) => rgb(style.getPropertyValue(name).trim());
  const back = variable("--back");
  const classes = { ...CLASS_COLOURS[theme], ...FORWARD };
  // Three shades of seven hues, hues first: neighbours in energy differ most.
  const far = theme === "dark" ? [255, 255, 255] : [0, 0, 0];
  const shades = [(c) => c, (c) => mix(c, back, 0.42), (c) => mix(c, far, 0.38)];
  const many = shades.flatMap((shade) => HUES.map((hue) => shade(rgb(hue))));
  return {
    theme,
    back,
    text: variable("--text"),
    quiet: variable("--quiet"),
    outline: variable("--outline"),
    track: variable("--track"),
    none: variable("--none"),
    accent: variable("--accent"),
    graph: variable("--graph"),
    wrong: theme === "dark" ? [255, 92, 92] : [176, 0, 32],
    ofClass: (name) => (classes[name] ? rgb(classes[name]) : variable("--none")),
    ofSubsystem: (name) => rgb(SUBSYSTEMS[name] ?? "#999999"),
    ofRank: (rank) => many[rank % many.length],
    ofEnergy: (share) => scale(VIRIDIS, theme === "dark" ? 0.12 + 0.88 * share : 0.86 - 0.84 * share),
    ofMomentum: (share) => scale(REDS, theme === "dark" ? 0.22 + 0.78 * share : 0.78 - 0.78 * share),
  };
}

/** A colour between others, from 0 to 1. */
function scale(colours, share) {
  const place = Math.min(Math.max(share, 0), 1) * (colours.length - 1);
  const low = Math.min(Math.floor(place), colours.length - 2);
  return mix(rgb(colours[low]), rgb(colours[low + 1]), place - low);
}
