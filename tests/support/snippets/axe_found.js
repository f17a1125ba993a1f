axe.run(WHERE, {resultTypes: ['violations'], selectors: false, preload: false, ...OPTIONS}).then(
  (found) => found.violations.filter((one) => one.id !== 'skip-link').map((one) => [one.id,
    one.nodes.map((node) => node.html.slice(0, 200)).slice(0, 3)]))
