package mix

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/tapswitch/tapswitch/tools/bench"
)

// plotted are the ways that have bars; the bridge is the line at 1.
var plotted = []struct {
	way    string
	colour color.Color
}{
	{BridgePass, color.RGBA{R: 0x9e, G: 0xae, B: 0xbd, A: 0xff}},
	{AllXDP, color.RGBA{R: 0xe0, G: 0xa0, B: 0x3c, A: 0xff}},
	{ByTC, color.RGBA{R: 0x6f, G: 0xb5, B: 0x8e, A: 0xff}},
	{Tapswitch, color.RGBA{R: 0x1f, G: 0x6f, B: 0xb2, A: 0xff}},
}

const (
	// barHeight is that of a bar where rows are 1 apart.
	barHeight = 0.2
	// maxRatio ends the axes; a bar that is longer is cut off there.
	maxRatio = 3

	plotWidth    = 26 * vg.Centimeter
	legendColumn = 3.5 * vg.Centimeter
	rowHeight    = 0.85 * vg.Centimeter
	plotMargin   = 4.2 * vg.Centimeter // for title, axis, legend and caption
)

// A plotRow is one load's figure in a picture.
type plotRow struct {
	label  string
	ratios []bench.Spread // by plotted way
}

// Plot writes pictures of the ratios to the bridge into a directory, as SVG and PNG,
// one for each family. The caption names the command that made them.
func (r *Report) Plot(dir, command string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("making a directory for pictures: %w", err)
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		speed, cost := r.plotRows(family, false), r.plotRows(family, true)
		caption := fmt.Sprintf("%s · Linux %s, %d CPUs, medians of %d rounds, whiskers: middle half", command, r.Kernel, r.CPUs, r.Rounds)
		height := plotMargin + rowHeight*vg.Length(max(len(speed), len(cost)))
		for _, format := range []struct {
			ext    string
			canvas vg.CanvasWriterTo
		}{
			{"svg", vgsvg.New(plotWidth, height)},
			{"png", vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(plotWidth, height), vgimg.UseDPI(120))}},
		} {
			drawPlots(draw.New(format.canvas), caption,
				newPlot("Throughput: more is better", "ratio to the bridge (line at 1), "+family, speed),
				newPlot("CPU time of the host, per kB or per frame: less is better", "ratio to the bridge (line at 1), "+family, cost))
			if err := writeFile(filepath.Join(dir, "mix-"+family+"."+format.ext), format.canvas); err != nil {
				return fmt.Errorf("writing a picture: %w", err)
			}
		}
	}
	return nil
}

func writeFile(path string, canvas vg.CanvasWriterTo) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := canvas.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// plotRows gives the rows of a family, of what is achieved or what it costs.
func (r *Report) plotRows(family string, cost bool) (rows []plotRow) {
	for i := range r.Loads {
		l := &r.Loads[i]
		if l.Family != family {
			continue
		}
		for _, f := range plottedFigures(l.Class, cost) {
			row := plotRow{label: l.Class + ": " + l.Name}
			if l.Class == Mix {
				row.label = fmt.Sprintf("%s: %s", l.Class, map[Figure]string{Goodput: "bulk", Rate: "requests", HostPerIn: "all"}[f])
			}
			for _, p := range plotted {
				row.ratios = append(row.ratios, l.way(p.way).OverBridge[f])
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func plottedFigures(class string, cost bool) []Figure {
	switch {
	case cost && (class == Bulk || class == Acks):
		return []Figure{HostPerKB}
	case cost:
		return []Figure{HostPerIn}
	case class == Requests || class == Flood:
		return []Figure{Rate}
	case class == UDP:
		return []Figure{Datagrams}
	case class == Mix:
		return []Figure{Goodput, Rate}
	}
	return []Figure{Goodput}
}

func newPlot(title, axis string, rows []plotRow) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.Title.Padding = title, vg.Millimeter
	p.X.Label.Text = axis
	p.X.Min, p.X.Max = 0, maxRatio
	p.Y.Min, p.Y.Max = -0.6, float64(len(rows))-0.4
	var ticks []plot.Tick
	for i, row := range rows {
		ticks = append(ticks, plot.Tick{Value: float64(len(rows) - 1 - i), Label: row.label})
	}
	p.Y.Tick.Marker = plot.ConstantTicks(ticks)
	p.Y.Tick.Length, p.Y.LineStyle.Width = 0, 0
	grid := plotter.NewGrid()
	grid.Horizontal.Width = 0
	p.Add(grid)
	for way, of := range plotted {
		b := bars{colour: of.colour}
		for i, row := range rows {
			y := float64(len(rows)-1-i) + barHeight*(float64(len(plotted)-1)/2-float64(way))
			b.list = append(b.list, bar{y, row.ratios[way]})
		}
		p.Add(b)
	}
	one := plotter.XYs{{X: 1, Y: p.Y.Min}, {X: 1, Y: p.Y.Max}}
	if line, err := plotter.NewLine(one); err == nil { // which only fails without points
		p.Add(line)
	}
	// The rows' own range, which Add may have widened.
	p.X.Min, p.X.Max = 0, maxRatio
	return p
}

// drawPlots puts two plots side by side, and a caption below.
func drawPlots(c draw.Canvas, caption string, plots ...*plot.Plot) {
	c.SetColor(color.White)
	c.Fill(c.Rectangle.Path())
	style := plots[0].X.Label.TextStyle
	style.Font.Size = 9
	const (
		edge = 0.3 * vg.Centimeter
		line = 0.6 * vg.Centimeter
		key  = 0.3 * vg.Centimeter
	)
	tiles := draw.Tiles{Rows: 1, Cols: len(plots), PadX: edge, PadLeft: edge, PadRight: edge, PadTop: edge, PadBottom: edge + 3*line}
	for i, canvas := range plot.Align([][]*plot.Plot{plots}, tiles, c)[0] {
		plots[i].Draw(canvas)
	}
	style.YAlign = draw.YBottom
	at := vg.Point{X: c.Center().X, Y: c.Min.Y + edge}
	c.FillText(style, at, caption)
	style.XAlign = draw.XLeft
	at = vg.Point{X: c.Center().X - vg.Length(len(plotted))/2*legendColumn, Y: at.Y + 1.5*line}
	for _, p := range plotted {
		c.FillPolygon(p.colour, []vg.Point{{X: at.X, Y: at.Y}, {X: at.X + key, Y: at.Y}, {X: at.X + key, Y: at.Y + key}, {X: at.X, Y: at.Y + key}})
		c.FillText(style, vg.Point{X: at.X + 1.5*key, Y: at.Y}, p.way)
		at.X += legendColumn
	}
}

// A bar lies at a height, as long as a ratio's median.
type bar struct {
	y     float64
	ratio bench.Spread
}

// Bars draws bars with whiskers. plotter.BarChart places those of a group by lengths
// on paper, which whiskers could not follow.
type bars struct {
	list   []bar
	colour color.Color
}

var (
	_ plot.Plotter     = bars{}
	_ plot.Thumbnailer = bars{}
)

// Plot draws the bars.
func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	toX, toY := p.Transforms(&c)
	x := func(v float64) vg.Length { return toX(min(v, maxRatio)) }
	for _, bar := range b.list {
		low, high := toY(bar.y-barHeight*0.45), toY(bar.y+barHeight*0.45)
		end := x(bar.ratio.Median)
		c.FillPolygon(b.colour, []vg.Point{{X: toX(0), Y: low}, {X: end, Y: low}, {X: end, Y: high}, {X: toX(0), Y: high}})
		line := draw.LineStyle{Color: color.Black, Width: vg.Points(0.6)}
		c.StrokeLine2(line, x(bar.ratio.Q1), toY(bar.y), x(bar.ratio.Q3), toY(bar.y))
	}
}

// Thumbnail draws a square for the legend.
func (b bars) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.colour, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}
