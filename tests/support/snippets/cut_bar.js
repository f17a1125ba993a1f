(path, calibrated_s, forward_s, backward_s) => {
  const record = {path, calibrated_s, forward_s, backward_s};
  const cell = T.modules.calibratedCell(record, 0.04, 'why');
  const [one, two] = cell.querySelectorAll('.fill');
  return [one.style.width, two.style.left, two.style.width].map(parseFloat);
}
