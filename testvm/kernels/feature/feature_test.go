package feature

import "testing"

func TestTable(t *testing.T) {
	got := Table([]Column{
		{"1.0", []Feature{{"wheels", "no"}}},
		{"2.0", []Feature{{"wheels", "yes"}, {"engine", "steam"}}},
	})
	const want = "| | 1.0 | 2.0 |\n" +
		"| --- | --- | --- |\n" +
		"| wheels | no | yes |\n" +
		"| engine | – | steam |\n"
	if got != want {
		t.Errorf("the table is\n%s, want\n%s", got, want)
	}
}
