(told, first, last) => T.source.stretches(
  {columns: ['calls'], open: new Set(), unfolded: new Set()},
  {text: Array(99).fill('x'), byLine: new Map(told)})
  .filter((one) => one.to >= first && one.from <= last && 'folded' in one)
  .map((one) => [one.from, one.to])
