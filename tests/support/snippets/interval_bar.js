([ci95_low, ci95_high, factor], most) => {
  const drawn = T.method.intervalBar({ci95_low, ci95_high, factor}, most, 'red');
  return [...drawn.children].flatMap(({style}) => style.width ? [style.left, style.width]
    : [style.left]).map(parseFloat);
}
