package cutline;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.IdentityHashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.And;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.AttributeReference;
import org.apache.spark.sql.catalyst.expressions.EqualNullSafe;
import org.apache.spark.sql.catalyst.expressions.EqualTo;
import org.apache.spark.sql.catalyst.expressions.ExprId;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.NamedExpression$;
import org.apache.spark.sql.catalyst.expressions.PlanExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateExpression;
import org.apache.spark.sql.catalyst.expressions.aggregate.AggregateFunction;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.plans.Inner$;
import org.apache.spark.sql.catalyst.plans.LeftSemi$;
import org.apache.spark.sql.catalyst.plans.logical.Aggregate;
import org.apache.spark.sql.catalyst.plans.logical.BROADCAST$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.HintInfo;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.JoinHint;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.WithCTE;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/**
 * An analysed query that can be computed from changes: inner equi-joins, filters and projections of tables, with or
 * without one GROUP BY above them; and the same query with other rows in the places of its tables. keyed.py says what
 * they are for.
 *
 * <p>The tables stand in `leaves` in the order of the plan, one that is named twice twice. A plan is changed by walking
 * it in that order; the rows that take a leaf's place get the names and ids of its columns, so all above it stays.
 */
public class Keyed {
    private static final Map WORDS = new HashMap();

    static {
        String[] words = {
            "Window", "a window", "Union", "UNION", "Intersect", "INTERSECT", "Except", "EXCEPT", "GlobalLimit", "LIMIT",
            "LocalLimit", "LIMIT", "Offset", "OFFSET", "Distinct", "SELECT DISTINCT", "Sort", "ORDER BY", "Generate",
            "rows that a function makes of a row", "Expand", "GROUPING SETS", "OneRowRelation", "rows of no table",
            "LocalRelation", "rows of no table", "ResolvedInlineTable", "rows of no table", "Range", "rows of no table",
            "Aggregate", "a GROUP BY inside", "ResolvedHint", "a hint", "LateralJoin", "LATERAL"
        };
        for (int at = 0; at < words.length; at += 2) {
            WORDS.put(words[at], words[at + 1]);
        }
    }

    private LogicalPlan plan;
    private LogicalPlan body;
    private Aggregate aggregate;
    private final List leaves = new ArrayList();
    private final List names = new ArrayList();
    private final List keys = new ArrayList();
    private final Set needed = new HashSet();
    private String why;

    /** Makes them, since a class that is compiled at run time is reached by an object of it. */
    public static class Maker {
        public Maker() {}

        /** Look through an analysed query over these rows (Dataset, by the tables' names). */
        public Keyed of(Dataset query, Map rows) {
            return new Keyed(query, rows);
        }
    }

    private Keyed(Dataset query, Map rows) {
        plan = query.queryExecution().analyzed();
        if (plan instanceof WithCTE) {
            plan = new InlineCTE(true, false).apply(plan);
        }
        Map tables = new IdentityHashMap();
        Iterator each = rows.entrySet().iterator();
        while (each.hasNext()) {
            Map.Entry entry = (Map.Entry) each.next();
            LogicalPlan leaf = ((Dataset) entry.getValue()).queryExecution().analyzed();
            while (!(leaf instanceof DataSourceV2Relation)) {
                leaf = (LogicalPlan) leaf.children().head();
            }
            tables.put(((DataSourceV2Relation) leaf).table(), entry.getKey());
        }
        body = plan;
        LogicalPlan top = plan;
        while (top instanceof Project || top instanceof Filter || top instanceof SubqueryAlias) {
            top = (LogicalPlan) top.children().head();
        }
        if (top instanceof Aggregate) {
            aggregate = (Aggregate) top;
            body = aggregate.child();
            for (LogicalPlan above = plan; above != aggregate; above = (LogicalPlan) above.children().head()) {
                checkExpressions(above);
            }
            checkExpressions(aggregate);
            if (aggregate.groupingExpressions().isEmpty()) {
                refuse("aggregates without GROUP BY");
            } else {
                findKeys();
            }
        }
        check(body, tables);
        if (why == null) {
            checkJoins(query.queryExecution().optimizedPlan());
        }
        List output = list(plan.output());
        for (int at = 0; at < output.size(); at++) {
            needed.add(((Attribute) output.get(at)).exprId());
        }
    }

    // What it is

    /** What the query has for which it can't be computed from changes; null if it can. */
    public String why() {
        return why;
    }

    /** The names of its tables, in the order of the plan. */
    public List names() {
        return names;
    }

    /** The columns of a leaf that the query needs. */
    public List columns(int leaf) {
        List found = new ArrayList();
        List output = list(((LogicalPlan) leaves.get(leaf)).output());
        for (int at = 0; at < output.size(); at++) {
            if (needed.contains(((Attribute) output.get(at)).exprId())) {
                found.add(((Attribute) output.get(at)).name());
            }
        }
        return found;
    }

    /** For each expression of GROUP BY the number of the result's column that is it; null if the query has none. */
    public List keys() {
        return aggregate == null ? null : keys;
    }

    private void refuse(String what) {
        if (why == null) {
            why = what;
        }
    }

    private void check(LogicalPlan at, Map tables) {
        if (at instanceof DataSourceV2Relation && tables.containsKey(((DataSourceV2Relation) at).table())) {
            leaves.add(at);
            names.add(tables.get(((DataSourceV2Relation) at).table()));
            return;
        }
        checkExpressions(at);
        if (at instanceof Join) {
            Join join = (Join) at;
            String kind = join.joinType().sql();
            if (!kind.equals("INNER") && !kind.equals("CROSS")) {
                refuse(kind + " JOIN");
            }
        } else if (!(at instanceof Project || at instanceof Filter || at instanceof SubqueryAlias)) {
            Object word = WORDS.get(at.nodeName());
            refuse(word == null ? at.nodeName() : (String) word);
        }
        List children = list(at.children());
        for (int child = 0; child < children.size(); child++) {
            check((LogicalPlan) children.get(child), tables);
        }
    }

    private void checkExpressions(LogicalPlan at) {
        List expressions = list(at.expressions());
        for (int each = 0; each < expressions.size(); each++) {
            checkExpression((Expression) expressions.get(each));
        }
    }

    private void checkExpression(Expression expression) {
        if (expression instanceof PlanExpression) {
            refuse("a subquery in an expression");
        }
        if (expression instanceof Attribute) {
            needed.add(((Attribute) expression).exprId());
        }
        if (expression instanceof AggregateExpression) {
            checkFunction(((AggregateExpression) expression).aggregateFunction());
        }
        List children = list(expression.children());
        for (int child = 0; child < children.size(); child++) {
            checkExpression((Expression) children.get(child));
        }
    }

    private void checkFunction(AggregateFunction function) {
        String name = function.getClass().getSimpleName();
        boolean sums = name.equals("Sum") || name.equals("Average");
        if (!sums && !name.equals("Count") && !name.equals("Min") && !name.equals("Max")) {
            refuse("the aggregate " + function.prettyName());
        } else if (sums) {
            DataType kind = ((Expression) list(function.children()).get(0)).dataType();
            if (kind instanceof FloatType || kind instanceof DoubleType) {
                refuse(function.prettyName() + " of floating-point numbers, whose last digits follow from their order");
            } else if (name.equals("Average") && !(kind instanceof DecimalType)) {
                refuse("avg of integers, which Spark computes as floating-point numbers");
            }
        }
    }

    /** Each join must have an equality between its two sides, once Spark has put the conditions in their places. */
    private void checkJoins(LogicalPlan optimized) {
        if (optimized instanceof Join) {
            Join join = (Join) optimized;
            if (join.condition().isEmpty() || !equates((Expression) join.condition().get(), join)) {
                refuse("a join without an equality of columns of both tables");
            }
        }
        List children = list(optimized.children());
        for (int child = 0; child < children.size(); child++) {
            checkJoins((LogicalPlan) children.get(child));
        }
    }

    private static boolean equates(Expression condition, Join join) {
        if (condition instanceof And) {
            return equates(((And) condition).left(), join) || equates(((And) condition).right(), join);
        }
        if (!(condition instanceof EqualTo) && !(condition instanceof EqualNullSafe)) {
            return false;
        }
        Expression one = (Expression) list(condition.children()).get(0);
        Expression other = (Expression) list(condition.children()).get(1);
        return (within(one, join.left()) && within(other, join.right()))
                || (within(one, join.right()) && within(other, join.left()));
    }

    private static boolean within(Expression expression, LogicalPlan side) {
        return !expression.references().isEmpty() && expression.references().subsetOf(side.outputSet());
    }

    private void findKeys() {
        List grouping = list(aggregate.groupingExpressions());
        List output = list(plan.output());
        for (int at = 0; at < grouping.size(); at++) {
            Expression wanted = (Expression) grouping.get(at);
            int found = -1;
            for (int column = 0; column < output.size() && found < 0; column++) {
                if (wanted.semanticEquals(origin((Attribute) output.get(column)))) {
                    found = column;
                }
            }
            if (found < 0) {
                refuse("GROUP BY " + wanted.sql() + ", which is no column of its result");
            }
            keys.add(Integer.valueOf(found));
        }
    }

    /** What a column of the result is, as an expression over the rows below GROUP BY or over aggregates. */
    private Expression origin(Attribute column) {
        Expression known = column;
        for (LogicalPlan at = plan; ; at = (LogicalPlan) at.children().head()) {
            List made = at == aggregate
                    ? list(aggregate.aggregateExpressions())
                    : at instanceof Project ? list(((Project) at).projectList()) : new ArrayList();
            Expression next = null;
            for (int each = 0; each < made.size(); each++) {
                if (made.get(each) instanceof Alias
                        && known instanceof Attribute
                        && ((Alias) made.get(each)).exprId().equals(((Attribute) known).exprId())) {
                    next = ((Alias) made.get(each)).child();
                }
            }
            known = next == null ? known : next;
            if (at == aggregate) {
                return known;
            }
        }
    }

    // The same query over other rows

    /**
     * The rows below GROUP BY, or of the result, that one leaf's `delta` gives, with the rows of `others` (Dataset, by
     * the number of the leaf) in the places of other leaves: as columns `k0`, `k1`, … the groups, or the result's
     * columns and delta's column `_weight`. Where the leaf alone tells the groups, they are those of delta itself, which
     * may be more than have changed.
     */
    public Dataset term(SparkSession session, int leaf, Dataset delta, Map others) {
        if (aggregate != null) {
            List own = new ArrayList();
            List grouping = list(aggregate.groupingExpressions());
            for (int at = 0; at < grouping.size(); at++) {
                Expression found = below((Expression) grouping.get(at), leaf);
                if (found != null) {
                    own.add(named(found, "k" + at, NamedExpression$.MODULE$.newExprId()));
                }
            }
            if (own.size() == grouping.size()) {
                LogicalPlan rows = new Swap(new HashMap(), -1, true, false).inPlace((LogicalPlan) leaves.get(leaf), delta, true);
                return Dataset.ofRows(session, new Project(seq(own), rows));
            }
        }
        Map rows = new HashMap(others);
        rows.put(Integer.valueOf(leaf), delta);
        Swap swap = new Swap(rows, leaf, true, aggregate == null);
        LogicalPlan made = swap.of(body);
        List columns = aggregate == null ? list(body.output()) : list(aggregate.groupingExpressions());
        List found = new ArrayList();
        for (int at = 0; at < columns.size(); at++) {
            found.add(named((Expression) columns.get(at), "k" + at, NamedExpression$.MODULE$.newExprId()));
        }
        if (swap.weight != null) {
            found.add(swap.weight);
        }
        return Dataset.ofRows(session, new Project(seq(found), made));
    }

    /** The leaf of which most expressions of GROUP BY are, with the numbers of these behind it; empty if there is none. */
    public List seed() {
        List grouping = list(aggregate.groupingExpressions());
        List best = new ArrayList();
        for (int leaf = 0; leaf < leaves.size(); leaf++) {
            List found = new ArrayList();
            found.add(Integer.valueOf(leaf));
            for (int at = 0; at < grouping.size(); at++) {
                if (below((Expression) grouping.get(at), leaf) != null) {
                    found.add(Integer.valueOf(at));
                }
            }
            if (found.size() > Math.max(1, best.size())) {
                best = found;
            }
        }
        return best;
    }

    /**
     * The rows of the leaf `seed` that are in one of these groups as far as that leaf tells, in its needed columns.
     * `nulls`: for each column of the groups, whether it has a null.
     */
    public Dataset seeds(SparkSession session, Dataset groups, List nulls) {
        List seed = seed();
        int leaf = ((Integer) seed.get(0)).intValue();
        List grouping = list(aggregate.groupingExpressions());
        List own = new ArrayList();
        List numbers = new ArrayList();
        for (int each = 1; each < seed.size(); each++) {
            int number = ((Integer) seed.get(each)).intValue();
            own.add(below((Expression) grouping.get(number), leaf));
            numbers.add(Integer.valueOf(number));
        }
        LogicalPlan rows = (LogicalPlan) leaves.get(leaf);
        List columns = new ArrayList();
        List output = list(rows.output());
        for (int at = 0; at < output.size(); at++) {
            if (needed.contains(((Attribute) output.get(at)).exprId())) {
                columns.add(output.get(at));
            }
        }
        return Dataset.ofRows(session, new Project(seq(columns), in(rows, own, groups, numbers, nulls)));
    }

    /** The query for these groups alone; `seeds` (null: none) are in the place of the leaf `seed`. */
    public Dataset again(SparkSession session, Dataset groups, List nulls, Dataset seeds) {
        Map rows = new HashMap();
        int small = -1;
        if (seeds != null) {
            small = ((Integer) seed().get(0)).intValue();
            rows.put(Integer.valueOf(small), seeds);
        }
        List numbers = new ArrayList();
        for (int at = 0; at < keys.size(); at++) {
            numbers.add(Integer.valueOf(at));
        }
        List grouping = list(aggregate.groupingExpressions());
        LogicalPlan some = in(new Swap(rows, small, false, false).of(body), grouping, groups, numbers, nulls);
        return Dataset.ofRows(session, over(plan, some));
    }

    private LogicalPlan over(LogicalPlan at, LogicalPlan some) {
        LogicalPlan child = at == aggregate ? some : over((LogicalPlan) at.children().head(), some);
        return (LogicalPlan) at.withNewChildren(seq(Arrays.asList(new Object[] {child})));
    }

    /** The rows of a plan for which these expressions are those columns of one of the groups. */
    private static LogicalPlan in(LogicalPlan rows, List expressions, Dataset groups, List numbers, List nulls) {
        LogicalPlan wanted = groups.queryExecution().analyzed();
        List columns = list(wanted.output());
        List chosen = new ArrayList();
        Expression condition = null;
        for (int at = 0; at < expressions.size(); at++) {
            int number = ((Integer) numbers.get(at)).intValue();
            Attribute column = (Attribute) columns.get(number);
            Alias alias = (Alias) named(column, "g" + at, NamedExpression$.MODULE$.newExprId());
            chosen.add(alias);
            Expression one = (Expression) expressions.get(at);
            Expression same = ((Boolean) nulls.get(number)).booleanValue()
                    ? (Expression) new EqualNullSafe(one, alias.toAttribute())
                    : (Expression) new EqualTo(one, alias.toAttribute()); // which Spark looks up much faster
            condition = condition == null ? same : new And(condition, same);
        }
        JoinHint hint = new JoinHint(Option.empty(), broadcast());
        return new Join(rows, new Project(seq(chosen), wanted), LeftSemi$.MODULE$, Option.apply(condition), hint);
    }

    /** An expression over the body's columns as one over those of a leaf; null if it is of more than that. */
    private Expression below(Expression expression, int leaf) {
        if (expression.references().isEmpty()) {
            return null;
        }
        return below(expression, body, new int[] {0}, leaf);
    }

    private Expression below(Expression expression, LogicalPlan at, int[] next, int leaf) {
        if (at instanceof DataSourceV2Relation) {
            return next[0]++ == leaf && expression.references().subsetOf(at.outputSet()) ? expression : null;
        }
        if (at instanceof Join) {
            Expression left = below(expression, ((Join) at).left(), next, leaf);
            Expression right = below(expression, ((Join) at).right(), next, leaf);
            return left == null ? right : left;
        }
        Expression known = expression;
        if (at instanceof Project) {
            known = (Expression) expression.transformUp(new Through(list(((Project) at).projectList())));
        }
        return below(known, (LogicalPlan) at.children().head(), next, leaf);
    }

    /** Replaces columns of a projection by what they are. */
    public static class Through extends AbstractPartialFunction {
        private final Map made = new HashMap();

        public Through(List columns) {
            for (int at = 0; at < columns.size(); at++) {
                if (columns.get(at) instanceof Alias) {
                    made.put(((Alias) columns.get(at)).exprId(), ((Alias) columns.get(at)).child());
                }
            }
        }

        public boolean isDefinedAt(Object expression) {
            return expression instanceof AttributeReference
                    && made.containsKey(((AttributeReference) expression).exprId());
        }

        public Object applyOrElse(Object expression, Function1 otherwise) {
            return isDefinedAt(expression)
                    ? made.get(((AttributeReference) expression).exprId())
                    : otherwise.apply(expression);
        }
    }

    /**
     * Puts rows in the places of leaves; those of the leaf `small` are broadcast into their own join, but not what that
     * makes, which may be large. `delta`: their last column is a weight, whatever its name.
     */
    private class Swap {
        private final Map rows;
        private final int small;
        private final boolean delta;
        private final boolean weighs;
        private int next = 0;
        Attribute weight = null;

        Swap(Map rows, int small, boolean delta, boolean weighs) {
            this.rows = rows;
            this.small = small;
            this.delta = delta;
            this.weighs = weighs;
        }

        LogicalPlan of(LogicalPlan at) {
            if (at instanceof DataSourceV2Relation) {
                int leaf = next++;
                Dataset other = (Dataset) rows.get(Integer.valueOf(leaf));
                return other == null ? at : inPlace(at, other, delta && leaf == small);
            }
            int first = next;
            if (at instanceof Join) {
                Join join = (Join) at;
                LogicalPlan left = of(join.left());
                boolean leftSmall = first <= small && small < next && alone(join.left());
                int middle = next;
                LogicalPlan right = of(join.right());
                boolean rightSmall = middle <= small && small < next && alone(join.right());
                JoinHint hint = leftSmall || rightSmall
                        ? new JoinHint(
                                leftSmall ? broadcast() : Option.empty(), rightSmall ? broadcast() : Option.empty())
                        : join.hint();
                return new Join(left, right, Inner$.MODULE$, join.condition(), hint);
            }
            LogicalPlan child = of((LogicalPlan) at.children().head());
            if (at instanceof Project && weighs && first <= small && small < next) {
                List columns = new ArrayList(list(((Project) at).projectList()));
                columns.add(weight);
                return new Project(seq(columns), child);
            }
            return (LogicalPlan) at.withNewChildren(seq(Arrays.asList(new Object[] {child})));
        }

        private boolean alone(LogicalPlan at) {
            LogicalPlan below = at;
            while (below instanceof Project || below instanceof Filter || below instanceof SubqueryAlias) {
                below = (LogicalPlan) below.children().head();
            }
            return below instanceof DataSourceV2Relation;
        }

        private LogicalPlan inPlace(LogicalPlan leaf, Dataset other, boolean isDelta) {
            LogicalPlan made = other.queryExecution().analyzed();
            Map byName = new HashMap();
            List output = list(made.output());
            for (int at = 0; at < output.size() - (isDelta ? 1 : 0); at++) {
                byName.put(((Attribute) output.get(at)).name(), output.get(at));
            }
            List columns = new ArrayList();
            List wanted = list(leaf.output());
            for (int at = 0; at < wanted.size(); at++) {
                Attribute column = (Attribute) wanted.get(at);
                if (needed.contains(column.exprId())) {
                    columns.add(named((Expression) byName.get(column.name()), column.name(), column.exprId()));
                }
            }
            if (isDelta && weighs) {
                Alias alias = (Alias) named(
                        (Expression) output.get(output.size() - 1), "_weight", NamedExpression$.MODULE$.newExprId());
                columns.add(alias);
                weight = alias.toAttribute();
            }
            return new Project(seq(columns), made);
        }
    }

    private static Expression named(Expression child, String name, ExprId id) {
        return new Alias(child, name, id, seq(new ArrayList()), Option.empty(), seq(new ArrayList()));
    }

    private static Option broadcast() {
        return Option.apply(new HintInfo(Option.apply(BROADCAST$.MODULE$)));
    }

    private static List list(Object seq) {
        return CollectionConverters.asJava((scala.collection.Seq) seq);
    }

    private static Seq seq(List items) {
        return CollectionConverters.asScala(items).toSeq();
    }
}
