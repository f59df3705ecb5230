package main

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// markdown returns a description of the run, a table for each group, and one for many pods.
func (r *report) markdown() string {
	var b strings.Builder
	last := r.Runs[len(r.Runs)-1]
	fmt.Fprintf(&b, "%s, Linux %s, %d CPUs. p50 (p10–p90).", last.Started.UTC().Format("2006-01-02 15:04 MST"), r.Kernel, r.CPUs)
	for _, n := range r.Names {
		fmt.Fprintf(&b, " %s is %s.", n, r.Versions[n])
	}
	b.WriteString("\n")
	for _, group := range r.groups() {
		if group == manyGroup {
			r.manyTable(&b)
			continue
		}
		r.table(&b, group)
	}
	return b.String()
}

func (r *report) groups() []string {
	var groups []string
	for _, s := range r.Series {
		if !slices.Contains(groups, s.Group) {
			groups = append(groups, s.Group)
		}
	}
	return groups
}

// columns returns the names with samples in a group.
func (r *report) columns(group string) []string {
	return slices.DeleteFunc(slices.Clone(r.Names), func(name string) bool {
		return !slices.ContainsFunc(r.Series, func(s *series) bool { return s.Group == group && len(s.Samples[name]) > 0 })
	})
}

// table writes a column for each name. If the subject has peers, it has two more for the subject
// and for each variant: the ratio to the best peer, and the goal.
func (r *report) table(b *strings.Builder, group string) {
	names := r.columns(group)
	var own []string
	if slices.Contains(names, r.Subject) && slices.ContainsFunc(names, func(n string) bool { return !isOwn(r.Subject, n) }) {
		own = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return !isOwn(r.Subject, n) })
	}
	head := append([]string{group}, names...)
	for _, n := range own {
		head = append(head, n+" : best peer", "must reach")
	}
	header(b, head)
	for _, s := range r.Series {
		if s.Group != group {
			continue
		}
		cells := []string{s.title()}
		for _, n := range names {
			cells = append(cells, s.cell(n))
		}
		for _, n := range own {
			ratio, must := s.comparison(n, s.best(r.Subject, names))
			cells = append(cells, ratio, must)
		}
		line(b, cells)
	}
}

// header writes the beginning of a table.
func header(b *strings.Builder, cells []string) {
	b.WriteString("\n")
	line(b, cells)
	b.WriteString("|" + strings.Repeat("---|", len(cells)) + "\n")
}

func line(b *strings.Builder, cells []string) {
	b.WriteString("| " + strings.Join(cells, " | ") + " |\n")
}

func (s *series) title() string {
	if s.Unit == "" {
		return s.Name
	}
	return s.Name + ", " + s.Unit
}

// comparison returns the p50 of name by that of the best peer, and whether a goal is reached; ""
// for what does not exist.
func (s *series) comparison(name, best string) (ratio, must string) {
	own, other := s.p50(name), s.p50(best)
	if !math.IsNaN(own) && other > 0 {
		ratio = fmt.Sprintf("%.2f × %s", own/other, best)
	}
	if g := goalOf(s); g != nil {
		must = g.verdict(own, other)
		if g.slow > 0 {
			slow := &goal{bound: g.slow}
			must += ", p90 " + slow.verdict(percentile(s.Samples[name], 90), percentile(s.Samples[best], 90))
		}
	}
	return ratio, must
}

// cell is cell of name's samples; pods beside pulls have the slow ones in brackets, where each is one that a pull has held up.
func (s *series) cell(name string) string {
	samples := s.Samples[name]
	if s.Group != besideGroup || len(samples) < 2 {
		return cell(samples)
	}
	return fmt.Sprintf("%s (p90 %s, p99 %s)", number(percentile(samples, 50)), number(percentile(samples, 90)), number(percentile(samples, 99)))
}

// cell returns p50 with p10 and p90, or the value of a single sample.
func cell(samples []float64) string {
	switch len(samples) {
	case 0:
		return "–"
	case 1:
		return number(samples[0])
	}
	return fmt.Sprintf("%s (%s–%s)", number(percentile(samples, 50)), number(percentile(samples, 10)), number(percentile(samples, 90)))
}

// number formats three significant digits, with at most two decimals.
func number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) || a >= 100:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 10:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// flat is the largest growth of a call's cost from the fewest to the most pods; for a list, of the
// cost for each pod.
const flat = 1.3

// curve is one row at one endpoint, for each number of pods.
type curve struct {
	title, name string
	pods        []int
	p50         []float64
}

// growth returns the ratio of the last value to the first.
func (c curve) growth() float64 { return c.p50[len(c.p50)-1] / c.p50[0] }

// verdict returns whether the curve is flat; "" for memory and the daemon's start, where the
// figures suffice.
func (c curve) verdict() string {
	g := goal{bound: flat, figure: true}
	switch {
	case strings.HasPrefix(c.title, "List"):
		g.bound *= float64(c.pods[len(c.pods)-1]) / float64(c.pods[0])
	case !strings.HasPrefix(c.title, "pod ") && !strings.HasPrefix(c.title, "ExecSync"):
		return ""
	}
	return g.verdict(c.growth(), 1)
}

// curves returns the curves of the many phase, row by row; counts are all numbers of pods.
func (r *report) curves() (all []curve, counts []int) {
	at := map[string]int{}
	sorted := slices.Clone(r.Series) // in the order of measurement, perhaps of several runs
	slices.SortStableFunc(sorted, func(a, b *series) int { return cmp.Compare(a.Pods, b.Pods) })
	for _, name := range r.Names {
		for _, s := range sorted {
			if s.Group != manyGroup || len(s.Samples[name]) == 0 {
				continue
			}
			if !slices.Contains(counts, s.Pods) {
				counts = append(counts, s.Pods)
			}
			i, ok := at[s.Name+"@"+name]
			if !ok {
				i = len(all)
				at[s.Name+"@"+name] = i
				all = append(all, curve{title: s.title(), name: name})
			}
			all[i].pods, all[i].p50 = append(all[i].pods, s.Pods), append(all[i].p50, s.p50(name))
		}
	}
	slices.Sort(counts)
	slices.SortStableFunc(all, func(a, b curve) int { return strings.Compare(a.title, b.title) })
	return all, counts
}

// manyTable writes a column for each number of pods.
func (r *report) manyTable(b *strings.Builder) {
	curves, counts := r.curves()
	head := []string{manyGroup, "of"}
	for _, n := range counts {
		head = append(head, strconv.Itoa(n))
	}
	head = append(head, "most : fewest", "must reach")
	header(b, head)
	for _, c := range curves {
		cells := []string{c.title, c.name}
		for _, n := range counts {
			if i := slices.Index(c.pods, n); i >= 0 {
				cells = append(cells, number(c.p50[i]))
			} else {
				cells = append(cells, "–")
			}
		}
		must := ""
		if isOwn(r.Subject, c.name) {
			must = c.verdict()
		}
		line(b, append(cells, number(c.growth()), must))
	}
}
