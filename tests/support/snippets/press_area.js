window.press = (name) => {
  const surface = document.querySelector('#module-picture .plot');
  const pointNumber = surface.data[0].labels.indexOf(name);
  surface.handlers.plotly_icicleclick({points: [{pointNumber}]});
}
