(() => {
  const root = {kind: 'all', value: 1.04, parent: null};
  const nodes = T.python.layOut(INDEXED, root, DEPTH, CUTOFF, FOLDED);
  return nodes.map((one) => [one.value, one.level, one.share, one.children.reduce((sum,
    child) => sum + child.value, 0), nodes.indexOf(one.parent)]);
})()
