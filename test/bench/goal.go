package main

import (
	"fmt"
	"math"
)

// goal is the bound of a row: for the ratio of the subject to its best peer, or for a figure.
type goal struct {
	group, row string
	bound      float64
	least      bool    // no less than bound, otherwise no more
	figure     bool    // the subject's own p50, not a ratio
	slow       float64 // the same for the ratio of both p90; 0 means none
}

var goals = []goal{
	{group: "Memory", row: "PSS, 0 pods", bound: 35, figure: true},
	{group: "Memory", row: "PSS, 50 pods", bound: 38, figure: true},
	{group: "Lists, 50 pods", row: "ListContainerStats", bound: 0.08},
	{group: "Lists, 50 pods", row: "ListPodSandboxStats", bound: 0.15},
	{group: "ExecSync true", row: "restricted", bound: 0.3},
	{group: "ExecSync true", row: "without seccomp", bound: 0.3},
	{group: "One restricted pod, host network", row: "StartContainer", bound: 0.7},
	{group: "One restricted pod, host network", row: "RemoveContainer", bound: 0.8},
	{group: "One restricted pod, host network", row: "create + start", bound: 0.22},
	{group: "One restricted pod, host network", row: "whole pod up", bound: 0.22},
	{group: "One restricted pod, host network", row: "whole pod down", bound: 0.13},
	{group: "One restricted pod, each one's own network", row: "whole pod up", bound: 0.14},
	{group: "One restricted pod, each one's own network", row: "whole pod down", bound: 0.08},
	{group: "One pod without seccomp, host network", row: "create + start", bound: 0.35},
	{group: "Churn, restricted pods, host network", row: "pods up and down, 10 workers", bound: 4.5, least: true},
	{group: "Churn, restricted pods, each one's own network", row: "pods up and down, 10 workers", bound: 6, least: true},
	{group: "One restricted pod, handler gvisor", row: "whole pod up", bound: 0.8},
	{group: "One restricted pod, handler runc", row: "whole pod up", bound: 0.8},
	{group: pullGroup, row: "PullImage", bound: 0.3},
	{group: pullGroup, row: pssAfterPull, bound: 0.8},
	{group: besideGroup, row: "CreateContainer", bound: 0.5},
	{group: besideGroup, row: "whole pod up", bound: 0.3, slow: 0.35},
}

func goalOf(s *series) *goal {
	for i := range goals {
		if goals[i].group == s.Group && goals[i].row == s.Name {
			return &goals[i]
		}
	}
	return nil
}

// verdict returns the bound, and whether the subject's p50, own, reaches it beside the best peer's.
func (g *goal) verdict(own, best float64) string {
	value, sign := own/best, "≤"
	if g.figure {
		value = own
	}
	reached := value <= g.bound
	if g.least {
		reached, sign = value >= g.bound, "≥"
	}
	text := fmt.Sprintf("%s %s", sign, number(g.bound))
	switch {
	case math.IsNaN(value):
		return text
	case reached:
		return text + " ✓"
	}
	return text + " ✗"
}
