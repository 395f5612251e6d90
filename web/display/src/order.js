// In which order the events come: as they are, the explained or the worst first.

const MEASURES = { jet: "worst jet", energy: "worst energy" };
const EXPLAINED = "explained"; // a key without a space: those of the worst have one
const ASK_AGAIN = 700; // ms

export class Order {
  /** `onChange(jump, whole)`: the order got better known; `jump` to its first event, `whole` if all of it is known. */
  constructor(data, events, onChange) {
    this.data = data;
    this.onChange = onChange;
    this.explained = events.explained ?? [];
    this.natural = events.indices ?? Array.from({ length: events.count }, (_, i) => i);
    this.sequence = this.natural;
    this.key = "";
    this.note = "";
  }

  /** Names and titles of the orders there are. */
  static choices(events) {
    const some = events.explained?.length && events.explained.length < (events.indices?.length ?? events.count);
    return [...Order.worst(events), ...(some ? [{ key: EXPLAINED, title: "explained first" }] : [])];
  }

  static worst(events) {
    if (!events.truth) return [];
    const reconstructions = events.reconstructions.filter(({ name }) => name !== "target");
    return reconstructions.flatMap(({ name, title }) =>
      Object.entries(MEASURES).map(([measure, text]) => ({ key: `${measure} ${name}`, title: `${text}: ${title}` })));
  }

  /** Take an order and go to its first event, if asked to; the worst are known better and better while the server computes. */
  async choose(key, jump = true) {
    this.key = key;
    this.note = "";
    this.sequence = this.natural;
    if (key === EXPLAINED) this.sequence = [...this.explained, ...this.natural.filter((index) => !this.explained.includes(index))];
    if (!key || key === EXPLAINED) return this.onChange(jump && key !== "", false);
    for (let waiting = jump; this.key === key; ) {
      const ranking = await this.data.ranking();
      if (this.key !== key) return undefined;
      if (ranking.failure) throw new Error(ranking.failure);
      const space = key.indexOf(" ");
      const errors = ranking.errors[key.slice(space + 1)]?.[key.slice(0, space)] ?? [];
      const known = this.natural.slice(0, errors.length).map((index, i) => [index, errors[i]]);
      known.sort((a, b) => b[1] - a[1]);
      this.sequence = [...known.map(([index]) => index), ...this.natural.slice(errors.length)];
      const whole = ranking.done >= ranking.of;
      this.note = whole ? "" : `${ranking.done} of ${ranking.of} events ordered`;
      this.onChange(waiting && errors.length > 0, whole);
      if (whole) return undefined;
      if (errors.length) waiting = false;
      await new Promise((done) => setTimeout(done, ASK_AGAIN));
    }
    return undefined;
  }

  place(index) {
    return this.sequence.indexOf(index);
  }

  /** The event so many steps further, staying within them. */
  step(index, steps) {
    const place = Math.min(Math.max(this.place(index) + steps, 0), this.sequence.length - 1);
    return this.sequence[place];
  }
}
