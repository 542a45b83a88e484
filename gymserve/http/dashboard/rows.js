// The rows of a table, each made once and changed only where it says something else.

export class Rows {
  #body;
  #make;
  #rows = new Map();

  // make(): { node, show(item) }.
  constructor(body, make) {
    this.#body = body;
    this.#make = make;
  }

  // items: of one table row each, in order, by their keys.
  show(items) {
    const focused = this.#body.contains(document.activeElement) ? document.activeElement : null;
    for (const [key, row] of this.#rows) {
      if (items.has(key)) continue;
      row.node.remove();
      this.#rows.delete(key);
    }
    let next = this.#body.firstElementChild;
    for (const [key, item] of items) {
      const row = this.#row(key);
      row.show(item);
      if (row.node === next || row.node === next?.nextElementSibling) next = row.node.nextElementSibling;
      else this.#body.insertBefore(row.node, next);
    }
    this.#refocus(focused);
  }

  #row(key) {
    let row = this.#rows.get(key);
    if (row === undefined) {
      row = this.#make();
      this.#rows.set(key, row);
    }
    return row;
  }

  // What is moved or removed loses the focus, and whoever uses the keyboard their place.
  #refocus(focused) {
    if (focused === null || document.activeElement === focused) return;
    const place = focused.isConnected ? focused : this.#body.closest("[tabindex]");
    place?.focus({ preventScroll: true });
  }
}
