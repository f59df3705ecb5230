package stage

import "time"

// A Share is how much of a call's time one name took.
type Share struct {
	Name string
	Took time.Duration
}

// Shares sums the spans by name, in the order in which the names first occur. Only the time from
// begin to end counts: followed work may have begun long before, and an open span counts until
// end.
func Shares(spans []Span, begin, end time.Time) []Share {
	var list []Share
	index := make(map[string]int, len(spans))
	for _, s := range spans {
		from, to := s.Begin, s.End
		if from.Before(begin) {
			from = begin
		}
		if to.IsZero() || to.After(end) {
			to = end
		}
		if !to.After(from) {
			continue
		}
		i, ok := index[s.Name]
		if !ok {
			i = len(list)
			index[s.Name] = i
			list = append(list, Share{Name: s.Name})
		}
		list[i].Took += to.Sub(from)
	}
	return list
}

// OpenPart returns the name of the open part that began last, "" if there is none.
func OpenPart(spans []Span) string {
	name := ""
	var begin time.Time
	for _, s := range spans {
		if s.Part && s.End.IsZero() && !s.Begin.Before(begin) {
			name, begin = s.Name, s.Begin
		}
	}
	return name
}

// Open returns the name of the open stage, "" if there is none.
func Open(spans []Span) string {
	for _, s := range spans {
		if !s.Part && s.End.IsZero() {
			return s.Name
		}
	}
	return ""
}
