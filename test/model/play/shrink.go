package play

import "slices"

// Shrink makes a failing script as short as it can: it leaves out rounds, clients and steps, and
// simplifies the rest, as long as fails returns true. tries bounds the calls of fails.
func Shrink(s Script, tries int, fails func(Script) bool) Script {
	for progress := true; progress; {
		progress = false
		for _, c := range simpler(s) {
			if tries--; tries < 0 {
				return s
			}
			if fails(c) {
				s, progress = c, true
				break
			}
		}
	}
	return s
}

// simpler returns scripts that are a little simpler, the shortest first.
func simpler(s Script) []Script {
	var list []Script
	add := func(change func(*Script)) {
		c := Script{Latency: s.Latency}
		for _, r := range s.Rounds {
			c.Rounds = append(c.Rounds, slices.Clone(r))
		}
		change(&c)
		c.Rounds = slices.DeleteFunc(c.Rounds, func(r Round) bool { return len(r) == 0 })
		list = append(list, c)
	}
	if n := len(s.Rounds); n > 2 {
		add(func(c *Script) { c.Rounds = c.Rounds[:n/2] })
	}
	for i := range s.Rounds {
		add(func(c *Script) { c.Rounds = slices.Delete(c.Rounds, i, i+1) })
	}
	for i, r := range s.Rounds {
		for _, client := range clients(r) {
			add(func(c *Script) {
				c.Rounds[i] = slices.DeleteFunc(c.Rounds[i], func(st Step) bool { return st.Client == client })
			})
		}
	}
	for i, r := range s.Rounds {
		for j := range r {
			add(func(c *Script) { c.Rounds[i] = slices.Delete(c.Rounds[i], j, j+1) })
		}
	}
	if s.Latency != 0 {
		add(func(c *Script) { c.Latency = 0 })
	}
	for i, r := range s.Rounds {
		for j, st := range r {
			simple := st
			simple.Delay, simple.Old = 0, false
			simple.Call.Patience, simple.Call.State = 0, ""
			for _, change := range []func(*Step){
				func(t *Step) { *t = simple },
				func(t *Step) { t.Delay = 0 },
				func(t *Step) { t.Old = false },
				func(t *Step) { t.Call.Patience = 0 },
				func(t *Step) { t.Call.State = "" },
				func(t *Step) { t.Call.Variant = 0 },
				func(t *Step) { t.Call.Image = keepImage(t) },
				func(t *Step) { t.Call.Grace = min(t.Call.Grace, 1) },
			} {
				if t := st; true {
					if change(&t); t != st {
						add(func(c *Script) { c.Rounds[i][j] = t })
					}
				}
			}
		}
	}
	return list
}

// keepImage returns "" if the call does not need its image.
func keepImage(t *Step) string {
	if t.Call.Container != "" {
		return ""
	}
	return t.Call.Image
}

func clients(r Round) []string {
	var names []string
	for _, s := range r {
		if !slices.Contains(names, s.Client) {
			names = append(names, s.Client)
		}
	}
	return names
}
