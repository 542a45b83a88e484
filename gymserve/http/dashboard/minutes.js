// What has ended in each minute of the last half hour.

export const SHOWN_MINUTES = 30;

export class Minutes {
  #minutes = new Map();

  ended(epochSeconds, scored) {
    const minute = this.#at(epochSeconds);
    if (scored) minute.scored += 1;
    else minute.unscored += 1;
  }

  masked(epochSeconds, kind) {
    const { masks } = this.#at(epochSeconds);
    masks.set(kind, (masks.get(kind) ?? 0) + 1);
  }

  // What gymserve has counted since then, in place of what was heard here of the same time.
  load({ since_epoch_seconds: since, minutes }) {
    const first = Math.floor(since / 60);
    for (const minute of this.#minutes.keys()) if (minute >= first) this.#minutes.delete(minute);
    for (const { at_epoch_seconds: at, scored, not_scored: unscored, masked } of minutes) {
      this.#minutes.set(at / 60, { startsAt: at, scored, unscored, masks: new Map(Object.entries(masked)) });
    }
  }

  // Oldest first, the one that `nowEpochSeconds` is in last: [{ startsAt, scored, unscored, masks }].
  upTo(nowEpochSeconds) {
    const last = Math.floor(nowEpochSeconds / 60);
    for (const minute of this.#minutes.keys()) {
      if (minute <= last - SHOWN_MINUTES) this.#minutes.delete(minute);
    }
    return Array.from({ length: SHOWN_MINUTES }, (_, index) => {
      const minute = last - SHOWN_MINUTES + 1 + index;
      return this.#minutes.get(minute) ?? empty(minute);
    });
  }

  #at(epochSeconds) {
    const minute = Math.floor(epochSeconds / 60);
    if (!this.#minutes.has(minute)) this.#minutes.set(minute, empty(minute));
    return this.#minutes.get(minute);
  }
}

function empty(minute) {
  return { startsAt: minute * 60, scored: 0, unscored: 0, masks: new Map() };
}
