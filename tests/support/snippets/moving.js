[document.getAnimations().length, [...document.querySelectorAll('*')].filter(one => {
  const style = getComputedStyle(one);
  return style.animationName !== 'none' || (style.transitionDuration !== '0s'
    && style.transitionProperty !== 'none') || style.scrollBehavior === 'smooth';
}).map(one => one.outerHTML.slice(0, 120))]
