// Columns of a channel as a reader thinks of them: each property a column of its own.

/** Splits `price: double, lines: list<item: struct<a: int64>>` at its outer commas. */
function parts(text) {
  const found = [];
  let depth = 0, from = 0;
  for (let at = 0; at <= text.length; at += 1) {
    const sign = text[at];
    if (sign === "<" || sign === "[") depth += 1;
    else if (sign === ">" || sign === "]") depth -= 1;
    else if (at === text.length || (sign === "," && depth === 0)) { found.push(text.slice(from, at).trim()); from = at + 1; }
  }
  return found.filter(Boolean);
}

/** `{ name, type, isProperty }` of each; structs with names that cannot be told apart stay whole. */
export function flat(columns) {
  return columns.flatMap((column) => {
    const inside = column.name === "properties" && /^struct<(.*)>$/s.exec(column.type);
    if (!inside) return [{ ...column, isProperty: false }];
    return parts(inside[1]).map((part) => {
      const at = part.indexOf(": ");
      return { name: part.slice(0, at), type: part.slice(at + 2).replace(/ not null$/, ""), isProperty: true };
    });
  });
}

/** The type of each property by its name. */
export const propertyTypes = (columns) => new Map(flat(columns).filter((each) => each.isProperty).map((each) => [each.name, each.type]));
