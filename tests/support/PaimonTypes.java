package lakewarden.tests;

import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import org.apache.paimon.catalog.Catalog;
import org.apache.paimon.catalog.Identifier;
import org.apache.paimon.data.BinaryString;
import org.apache.paimon.data.Decimal;
import org.apache.paimon.data.GenericArray;
import org.apache.paimon.data.GenericMap;
import org.apache.paimon.data.GenericRow;
import org.apache.paimon.data.InternalArray;
import org.apache.paimon.data.InternalMap;
import org.apache.paimon.data.InternalRow;
import org.apache.paimon.data.Timestamp;
import org.apache.paimon.deletionvectors.BitmapDeletionVector;
import org.apache.paimon.deletionvectors.DeletionVector;
import org.apache.paimon.deletionvectors.append.BaseAppendDeleteFileMaintainer;
import org.apache.paimon.disk.IOManager;
import org.apache.paimon.io.CompactIncrement;
import org.apache.paimon.io.DataFileMeta;
import org.apache.paimon.io.DataIncrement;
import org.apache.paimon.manifest.FileKind;
import org.apache.paimon.manifest.IndexManifestEntry;
import org.apache.paimon.manifest.ManifestEntry;
import org.apache.paimon.predicate.PredicateBuilder;
import org.apache.paimon.reader.RecordReader;
import org.apache.paimon.schema.Schema;
import org.apache.paimon.schema.SchemaChange;
import org.apache.paimon.shade.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.paimon.table.FileStoreTable;
import org.apache.paimon.table.sink.CommitMessageImpl;
import org.apache.paimon.table.sink.StreamTableCommit;
import org.apache.paimon.table.sink.StreamTableWrite;
import org.apache.paimon.table.source.ReadBuilder;
import org.apache.paimon.types.ArrayType;
import org.apache.paimon.types.DataField;
import org.apache.paimon.types.DataType;
import org.apache.paimon.types.DataTypes;
import org.apache.paimon.types.DecimalType;
import org.apache.paimon.types.MapType;
import org.apache.paimon.types.MultisetType;
import org.apache.paimon.types.RowType;
import org.apache.paimon.utils.CloseableIterator;
import org.apache.paimon.utils.InternalRowUtils;

/** Tables of every type, changed and read by Paimon's own library alone. */
public class PaimonTypes {
  private static final ObjectMapper JSON = new ObjectMapper();
  private long commits = 0;

  /** The kind of a table is which columns it has: "all", "floats" or "plain"; or "flat", which is "plain" without partitions. */
  public void create(Catalog catalog, String name, String kind, Map options) throws Exception {
    catalog.createDatabase("db", true);
    Schema.Builder schema = Schema.newBuilder();
    schema.column("id", DataTypes.BIGINT());
    schema.column("dt", DataTypes.INT());
    if (kind.equals("all")) {
      everyType(schema);
    } else if (kind.equals("floats")) {
      schema.column("f", DataTypes.DOUBLE());
    } else {
      schema.column("n", DataTypes.INT());
      schema.column("s", DataTypes.STRING());
    }
    if (!kind.equals("flat")) {
      schema.partitionKeys(Arrays.asList(new String[] {"dt"}));
    }
    schema.options(options);
    catalog.createTable(Identifier.create("db", name), schema.build(), false);
  }

  private static void everyType(Schema.Builder schema) {
    schema.column("b", DataTypes.BOOLEAN());
    schema.column("i8", DataTypes.TINYINT());
    schema.column("i16", DataTypes.SMALLINT());
    schema.column("i32", DataTypes.INT().notNull());
    schema.column("f32", DataTypes.FLOAT());
    schema.column("f64", DataTypes.DOUBLE());
    schema.column("d9", DataTypes.DECIMAL(9, 2));
    schema.column("d18", DataTypes.DECIMAL(18, 4));
    schema.column("d30", DataTypes.DECIMAL(30, 6));
    schema.column("c", DataTypes.CHAR(5));
    schema.column("vc", DataTypes.VARCHAR(40));
    schema.column("bin", DataTypes.BINARY(4));
    schema.column("vb", DataTypes.BYTES());
    schema.column("day", DataTypes.DATE());
    schema.column("tm", DataTypes.TIME());
    schema.column("ts0", DataTypes.TIMESTAMP(0));
    schema.column("ts3", DataTypes.TIMESTAMP(3));
    schema.column("ts6", DataTypes.TIMESTAMP(6));
    schema.column("ts9", DataTypes.TIMESTAMP(9));
    schema.column("lz0", DataTypes.TIMESTAMP_WITH_LOCAL_TIME_ZONE(0));
    schema.column("lz3", DataTypes.TIMESTAMP_WITH_LOCAL_TIME_ZONE(3));
    schema.column("lz6", DataTypes.TIMESTAMP_WITH_LOCAL_TIME_ZONE(6));
    schema.column("lz9", DataTypes.TIMESTAMP_WITH_LOCAL_TIME_ZONE(9));
    schema.column("arr", DataTypes.ARRAY(DataTypes.INT()));
    schema.column("arr2", DataTypes.ARRAY(DataTypes.ARRAY(DataTypes.STRING())));
    schema.column("mp", DataTypes.MAP(DataTypes.STRING(), DataTypes.BIGINT()));
    schema.column("ms", DataTypes.MULTISET(DataTypes.STRING()));
    schema.column(
        "rw",
        DataTypes.ROW(
            new DataField[] {
              DataTypes.FIELD(100, "x", DataTypes.INT()),
              DataTypes.FIELD(101, "at", DataTypes.TIMESTAMP(9)),
              DataTypes.FIELD(102, "more", DataTypes.ARRAY(DataTypes.DECIMAL(20, 1)))
            }));
  }

  /** One commit of rows that follow from their numbers alone, whatever columns the table has by now. */
  public void write(FileStoreTable table, long from, long count, int dt) throws Exception {
    StreamTableWrite write = table.newWrite("writer");
    write = (StreamTableWrite) write.withIOManager(IOManager.create(System.getProperty("java.io.tmpdir")));
    List fields = table.rowType().getFields();
    for (long id = from; id < from + count; id++) {
      GenericRow row = new GenericRow(fields.size());
      for (int i = 0; i < fields.size(); i++) {
        DataField field = (DataField) fields.get(i);
        boolean empty = field.type().isNullable() && (id + i) % 5 == 0;
        Object value = empty ? null : value(field.type(), id + 31L * i);
        if (field.name().equals("id")) {
          value = Long.valueOf(id);
        } else if (field.name().equals("dt")) {
          value = Integer.valueOf(dt);
        } else if (field.name().equals("f")) {
          value = Double.valueOf(id % 10 == 3 ? Double.NaN : (double) id);
        }
        row.setField(i, value);
      }
      write.write(row);
    }
    commit(table, write.prepareCommit(false, ++commits));
    write.close();
  }

  private void commit(FileStoreTable table, List messages) throws Exception {
    Map writeOnly = Collections.singletonMap("write-only", "true");
    StreamTableCommit commit = ((FileStoreTable) table.copy(writeOnly)).newCommit("typed-" + commits);
    commit.commit(commits, messages);
    commit.close();
  }

  private static Object value(DataType type, long seed) {
    switch (type.getTypeRoot()) {
      case BOOLEAN:
        return Boolean.valueOf(seed % 2 == 0);
      case TINYINT:
        return Byte.valueOf((byte) seed);
      case SMALLINT:
        return Short.valueOf((short) (seed * 251));
      case INTEGER:
        return Integer.valueOf((int) (seed * 7919 - 50000));
      case DATE:
        return Integer.valueOf((int) (seed * 97 - 20000));
      case TIME_WITHOUT_TIME_ZONE:
        return Integer.valueOf((int) (seed * 86413 % 86400000));
      case BIGINT:
        return Long.valueOf(seed * 1000003);
      case FLOAT:
        return Float.valueOf(seed % 11 == 0 ? -0.0f : (float) seed / 3);
      case DOUBLE:
        return Double.valueOf(seed % 11 == 0 ? Double.NEGATIVE_INFINITY : (double) seed / 7);
      case DECIMAL:
        DecimalType decimal = (DecimalType) type;
        BigDecimal number = BigDecimal.valueOf(seed * 97 % 100000 - 3000, decimal.getScale());
        return Decimal.fromBigDecimal(number, decimal.getPrecision(), decimal.getScale());
      case CHAR:
        return BinaryString.fromString("c" + (1000 + seed % 9000));
      case VARCHAR:
        return BinaryString.fromString(seed % 3 == 0 ? "" : "v\u00e4\u20ac" + seed % 50);
      case BINARY:
        return new byte[] {(byte) seed, 0, 1, (byte) 255};
      case VARBINARY:
        return new byte[(int) (seed % 9)];
      case TIMESTAMP_WITHOUT_TIME_ZONE:
        return moment(((org.apache.paimon.types.TimestampType) type).getPrecision(), seed);
      case TIMESTAMP_WITH_LOCAL_TIME_ZONE:
        return moment(((org.apache.paimon.types.LocalZonedTimestampType) type).getPrecision(), seed);
      case ARRAY:
        Object[] items = new Object[(int) (seed % 4)];
        for (int i = 0; i < items.length; i++) {
          items[i] = i == 1 ? null : value(((ArrayType) type).getElementType(), seed + i);
        }
        return new GenericArray(items);
      case MAP:
        Map pairs = new HashMap();
        for (int i = 0; i < seed % 3; i++) {
          pairs.put(BinaryString.fromString("k" + i), i == 1 ? null : value(((MapType) type).getValueType(), seed + i));
        }
        return new GenericMap(pairs);
      case MULTISET:
        Map counts = new HashMap();
        counts.put(BinaryString.fromString("m" + seed % 4), Integer.valueOf((int) (seed % 5)));
        return new GenericMap(counts);
      case ROW:
        RowType row = (RowType) type;
        GenericRow inner = new GenericRow(row.getFieldCount());
        for (int i = 0; i < row.getFieldCount(); i++) {
          inner.setField(i, (seed + i) % 4 == 0 ? null : value(row.getTypeAt(i), seed + i));
        }
        return inner;
      default:
        throw new IllegalArgumentException(type.toString());
    }
  }

  /** Also long before and long after what nanoseconds in 64 bits reach. */
  private static Timestamp moment(int precision, long seed) {
    long[] starts = {0L, -40000000000000L, 253402300000000L, 1700000000000L};
    long millis = starts[(int) (seed % 4)] + (precision == 0 ? seed * 1000 : seed);
    int nanos = precision >= 9 ? (int) (seed * 7 % 1000000) : precision >= 6 ? (int) (seed % 1000) * 1000 : 0;
    return Timestamp.fromEpochMillis(millis, nanos);
  }

  public void change(Catalog catalog, String name, String what) throws Exception {
    List changes = new ArrayList();
    if (what.equals("evolve")) {
      changes.add(SchemaChange.renameColumn("s", "text"));
      changes.add(SchemaChange.updateColumnType("n", DataTypes.BIGINT()));
      changes.add(SchemaChange.addColumn("extra", DataTypes.INT()));
    } else if (what.equals("drop")) {
      changes.add(SchemaChange.dropColumn("extra"));
    } else if (what.equals("again")) {
      changes.add(SchemaChange.addColumn("extra", DataTypes.STRING()));
    } else if (what.equals("cast")) {
      changes.add(SchemaChange.updateColumnType("n", DataTypes.STRING()));
    } else {
      String[] option = what.split("=");
      changes.add(SchemaChange.setOption(option[0], option[1]));
    }
    catalog.alterTable(Identifier.create("db", name), changes, false);
  }

  /** Every row as text, in the order of the reader, each followed by nothing; sorted where asked. */
  public String rows(FileStoreTable table, boolean sorted) throws Exception {
    ReadBuilder read = table.newReadBuilder();
    return texts(table, read, sorted);
  }

  /** Rows whose f is larger than this. */
  public String larger(FileStoreTable table, double bound) throws Exception {
    PredicateBuilder builder = new PredicateBuilder(table.rowType());
    int at = table.rowType().getFieldIndex("f");
    ReadBuilder read = table.newReadBuilder().withFilter(builder.greaterThan(at, Double.valueOf(bound)));
    return texts(table, read, true);
  }

  private static String texts(FileStoreTable table, ReadBuilder read, boolean sorted) throws Exception {
    RecordReader reader = read.newRead().executeFilter().createReader(read.newScan().plan());
    CloseableIterator rows = reader.toCloseableIterator();
    List found = new ArrayList();
    while (rows.hasNext()) {
      found.add(text(rows.next(), table.rowType()));
    }
    rows.close();
    if (sorted) {
      Collections.sort(found);
    }
    return JSON.writeValueAsString(found);
  }

  private static String text(Object value, DataType type) {
    if (value == null) {
      return "null";
    }
    switch (type.getTypeRoot()) {
      case BINARY:
      case VARBINARY:
        return Arrays.toString((byte[]) value);
      case ROW:
        InternalRow row = (InternalRow) value;
        StringBuilder told = new StringBuilder("(");
        for (int i = 0; i < row.getFieldCount(); i++) {
          DataType inner = ((RowType) type).getTypeAt(i);
          told.append(text(InternalRowUtils.get(row, i, inner), inner)).append(" ");
        }
        return told.append(")").toString();
      case ARRAY:
        return texts((InternalArray) value, ((ArrayType) type).getElementType()).toString();
      case MAP:
        return pairs((InternalMap) value, ((MapType) type).getKeyType(), ((MapType) type).getValueType());
      case MULTISET:
        return pairs((InternalMap) value, ((MultisetType) type).getElementType(), DataTypes.INT());
      default:
        return value.toString();
    }
  }

  private static List texts(InternalArray array, DataType type) {
    List found = new ArrayList();
    for (int i = 0; i < array.size(); i++) {
      found.add(text(InternalRowUtils.get(array, i, type), type));
    }
    return found;
  }

  private static String pairs(InternalMap map, DataType key, DataType item) {
    List keys = texts(map.keyArray(), key);
    List items = texts(map.valueArray(), item);
    Map found = new TreeMap();
    for (int i = 0; i < keys.size(); i++) {
      found.put(keys.get(i), items.get(i));
    }
    return found.toString();
  }

  /** Live data files: [[partition and bucket, level, schema, source, min sequence, max sequence, rows, stats, name], ...]. */
  public String files(FileStoreTable table) throws Exception {
    List found = new ArrayList();
    for (Iterator each = table.store().newScan().plan().files().iterator(); each.hasNext(); ) {
      ManifestEntry entry = (ManifestEntry) each.next();
      DataFileMeta file = entry.file();
      Map row = new HashMap();
      row.put("place", table.store().pathFactory().getPartitionString(entry.partition()) + entry.bucket());
      row.put("level", Integer.valueOf(file.level()));
      row.put("schema", Long.valueOf(file.schemaId()));
      row.put("source", file.fileSource().isPresent() ? file.fileSource().get().toString() : "");
      row.put("min", Long.valueOf(file.minSequenceNumber()));
      row.put("max", Long.valueOf(file.maxSequenceNumber()));
      row.put("rows", Long.valueOf(file.rowCount()));
      row.put("stats", stats(table, file));
      row.put("name", file.fileName());
      found.add(row);
    }
    return JSON.writeValueAsString(found);
  }

  private static List stats(FileStoreTable table, DataFileMeta file) {
    RowType type = table.schemaManager().schema(file.schemaId()).logicalRowType();
    List names = file.valueStatsCols() == null ? type.getFieldNames() : file.valueStatsCols();
    List found = new ArrayList();
    for (int i = 0; i < names.size(); i++) {
      DataType of = type.getField((String) names.get(i)).type();
      Object least = InternalRowUtils.get(file.valueStats().minValues(), i, of);
      Object most = InternalRowUtils.get(file.valueStats().maxValues(), i, of);
      boolean unknown = file.valueStats().nullCounts().isNullAt(i);
      Object nulls = unknown ? null : Long.valueOf(file.valueStats().nullCounts().getLong(i));
      found.add(names.get(i) + " " + text(least, of) + " " + text(most, of) + " " + nulls);
    }
    return found;
  }

  /** Strikes these positions of one live data file (by its place in the list of names), by a deletion vector. */
  public void strike(FileStoreTable table, String dataFile, long first, long count) throws Exception {
    ManifestEntry entry = null;
    for (Iterator each = table.store().newScan().plan().files().iterator(); each.hasNext(); ) {
      ManifestEntry seen = (ManifestEntry) each.next();
      if (seen.file().fileName().equals(dataFile)) {
        entry = seen;
      }
    }
    DeletionVector vector =
        table.coreOptions().deletionVectorBitmap64()
            ? (DeletionVector) new org.apache.paimon.deletionvectors.Bitmap64DeletionVector()
            : (DeletionVector) new BitmapDeletionVector();
    for (long at = first; at < first + count; at++) {
      vector.delete(at);
    }
    BaseAppendDeleteFileMaintainer maintainer =
        BaseAppendDeleteFileMaintainer.forUnawareAppend(
            table.store().newIndexFileHandler(), table.snapshotManager().latestSnapshot(), entry.partition());
    maintainer.notifyNewDeletionVector(dataFile, vector);
    List added = new ArrayList();
    List removed = new ArrayList();
    for (Iterator each = maintainer.persist().iterator(); each.hasNext(); ) {
      IndexManifestEntry index = (IndexManifestEntry) each.next();
      (index.kind() == FileKind.ADD ? added : removed).add(index.indexFile());
    }
    DataIncrement increment =
        new DataIncrement(new ArrayList(), new ArrayList(), new ArrayList(), added, removed);
    CommitMessageImpl message =
        new CommitMessageImpl(
            entry.partition(), 0, Integer.valueOf(entry.totalBuckets()), increment, CompactIncrement.emptyIncrement());
    ++commits;
    commit(table, Collections.singletonList(message));
  }
}
